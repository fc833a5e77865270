"""Where one layer ends and the next begins.

Between two attention cores lie the tail of one layer and the head of the next. The cut is the norm that opens a layer;
which norm that is follows from how many projections come before a core, counted where the head is not mixed with a
tail: in front of the first core of a pass, after an embedding or a transfer. Backward the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from analysis.layers.anchors import Anchors
from analysis.layers.passes import BACKWARD, FORWARD, HARD, RECOMPUTE, Marks, Places
from analysis.layers.track import MATMUL, Ints, Kind, Track

Words = list[int]
_SKIP = 16
"""How many foreign kernels in a row may lie inside the head or tail of a layer at the edge of a pass."""
_LIGHT = ("cast", "elementwise", "movement", "reduction")


@dataclass
class Templates:
    """How the head and the tail of a layer read, every form met, by direction."""

    heads: dict[int, set[tuple[int, ...]]] = field(default_factory=lambda: {FORWARD: set(), BACKWARD: set()})
    tails: dict[int, set[tuple[int, ...]]] = field(default_factory=lambda: {FORWARD: set(), BACKWARD: set()})

    def learn(self, direction: int, words: Words, cut: int) -> None:
        self.tails[direction].add(tuple(words[:cut]))
        self.heads[direction].add(tuple(words[cut:]))


def cut_layers(track: Track, anchors: Anchors, places: Places, marks: Marks) -> tuple[Ints, Ints]:
    """(start, end) of the stretch of main kernels that belongs to each anchor's layer; end is not included.

    A core that is recomputed alone, without projections, gets a stretch of its own inside that of its backward core.
    """
    start, end = anchors.first.copy(), anchors.last + 1
    kept = np.flatnonzero(~_core_only(track, anchors, places))
    if len(kept):
        start[kept], end[kept] = _cut_all(track, anchors.taken(kept), places.taken(kept), marks)
    return start, end


def _cut_all(track: Track, anchors: Anchors, places: Places, marks: Marks) -> tuple[Ints, Ints]:
    start, end = anchors.first.copy(), anchors.last + 1
    templates = Templates()
    inside = (np.diff(places.chunk) == 0) & (np.diff(places.step) == 0)
    _cut_inside(track, anchors, places, marks, np.flatnonzero(inside), templates, start, end)
    edges = np.flatnonzero(~inside)
    last, first = [*edges.tolist(), len(anchors) - 1], [0, *(edges + 1).tolist()]
    behind = [_after(track, anchors, marks, index) for index in last]
    end[last] += _lengths(behind, [_direction(places, index) for index in last], templates.tails, tail_length)
    before = [_before(track, anchors, marks, index) for index in first]
    start[first] -= _lengths(before, [_direction(places, index) for index in first], templates.heads, head_length)
    start[edges + 1] = np.maximum(start[edges + 1], end[edges])
    return start, end


def _lengths(
    spans: list[tuple[Words, list[Kind]]],
    ways: list[int],
    known: dict[int, set[tuple[int, ...]]],
    length: Callable[[Words, list[Kind], set[tuple[int, ...]], list[Words]], int],
) -> list[int]:
    """Length of the head or tail in each span at the edge of a pass; what reads the same is measured once."""
    forms = {(way, tuple(words)): (words, kinds) for way, (words, kinds) in zip(ways, spans, strict=True)}
    alike = {way: [words for (other, _), (words, _) in forms.items() if other == way] for way in set(ways)}
    measured = {form: length(*span, known[form[0]], alike[form[0]]) for form, span in forms.items()}
    return [measured[way, tuple(words)] for way, (words, _) in zip(ways, spans, strict=True)]


def _direction(places: Places, index: int) -> int:
    return BACKWARD if places.pass_[index] == BACKWARD else FORWARD


def _core_only(track: Track, anchors: Anchors, places: Places) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Recomputed cores with no projection before the backward core that follows."""
    products = np.concatenate(([0], np.cumsum(track.flag(*MATMUL))))
    following = np.append(anchors.first[1:], len(track.main))
    none = products[following] == products[anchors.last + 1]
    return np.asarray((places.pass_ == RECOMPUTE) & none)


def _cut_inside(
    track: Track,
    anchors: Anchors,
    places: Places,
    marks: Marks,
    left: Ints,
    templates: Templates,
    start: Ints,
    end: Ints,
) -> None:
    """Cut every gap between neighbours in the model; gaps that read the same are cut once."""
    if not len(left):
        return
    right = left + 1
    gap_start, gap_end = anchors.last[left] + 1, anchors.first[right]
    relation = places.pass_[left] * 3 + places.pass_[right]
    key = track.signatures(gap_start, gap_end) ^ (relation.astype(np.uint64) << np.uint64(60))
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    lengths = np.zeros(len(first), dtype=np.int64)
    same_first = sorted(range(len(first)), key=lambda g: places.pass_[left[first[g]]] != places.pass_[right[first[g]]])
    for g in same_first:
        lengths[g] = _cut_gap(track, anchors, places, marks, int(left[first[g]]), templates)
    end[left] = gap_start + lengths[group]
    start[right] = end[left]


def _cut_gap(track: Track, anchors: Anchors, places: Places, marks: Marks, a: int, templates: Templates) -> int:
    """Kernels of the gap between anchor a and the next that still belong to a's layer."""
    b = a + 1
    words, kinds = _read(track, int(anchors.last[a]) + 1, int(anchors.first[b]))
    pass_a, pass_b = int(places.pass_[a]), int(places.pass_[b])
    if pass_a == RECOMPUTE and pass_b == BACKWARD:
        cut = max((common_prefix(words, tail) for tail in templates.tails[FORWARD]), default=len(words) // 2)
        templates.heads[BACKWARD].add(tuple(words[cut:]))
    elif pass_a == BACKWARD and pass_b == RECOMPUTE:
        head = max((common_suffix(words, head) for head in templates.heads[FORWARD]), default=len(words) // 2)
        cut = len(words) - head
        templates.tails[BACKWARD].add(tuple(words[:cut]))
    elif pass_b == BACKWARD:
        windows = [_after(track, anchors, marks, i)[0] for i in _edges(places, BACKWARD)]
        cut = backward_cut(words, kinds, windows, track.products)
        templates.learn(BACKWARD, words, cut)
    else:
        windows = [_before(track, anchors, marks, i)[0] for i in _edges(places, FORWARD)]
        cut = forward_cut(words, kinds, windows, track.products)
        templates.learn(FORWARD, words, cut)
    return cut


def _edges(places: Places, direction: int) -> list[int]:
    """A few anchors at the edge of a pass that no other layer is mixed with: first ones forward, last ones backward."""
    changes = (np.diff(places.chunk) != 0) | (np.diff(places.step) != 0)
    edge = np.concatenate((changes, [True])) if direction == BACKWARD else np.concatenate(([True], changes))
    return [int(i) for i in np.flatnonzero(edge & (places.pass_ == direction))[:8]]


def _read(track: Track, start: int, end: int) -> tuple[Words, list[Kind]]:
    return track.word[start:end].tolist(), track.kinds_of(start, end)


def _before(track: Track, anchors: Anchors, marks: Marks, index: int) -> tuple[Words, list[Kind]]:
    """Kernels in front of an anchor, back to the last mark, the anchor before or the start of the step."""
    first = int(anchors.first[index])
    low = int(anchors.last[index - 1]) + 1 if index else 0
    steps = track.main_steps
    low = max(low, int(np.searchsorted(steps, steps[first])))
    marked = int(np.searchsorted(marks.positions, first)) - 1
    if marked >= 0:
        low = max(low, int(marks.positions[marked]) + 1)
    return _read(track, min(low, first), first)


def _after(track: Track, anchors: Anchors, marks: Marks, index: int) -> tuple[Words, list[Kind]]:
    """Kernels behind an anchor, up to the next mark, the anchor after or the end of the step."""
    begin = int(anchors.last[index]) + 1
    high = int(anchors.first[index + 1]) if index + 1 < len(anchors) else len(track.main)
    steps = track.main_steps
    high = min(high, int(np.searchsorted(steps, steps[begin - 1], side="right")))
    marked = int(np.searchsorted(marks.positions, begin - 1))
    if marked < len(marks.positions):
        # a transfer starts after its kernel, anything else is the marking kernel itself
        position = int(marks.positions[marked])
        high = min(high, position + (track.kinds[track.kind[position]].cls not in HARD))
    return _read(track, begin, max(begin, high))


def forward_cut(words: Words, kinds: list[Kind], windows: list[Words], known: frozenset[int]) -> int:
    """Length of the tail in a gap between two forward cores of one pass.

    `windows` are the kernels in front of first cores, where only a head can be; `known` are the words of products.
    """
    products = [i for i, kind in enumerate(kinds) if kind.cls in MATMUL]
    head = _head_products([words[i] for i in products], windows, known)
    if not head:
        return _before_widest_norm(kinds)
    first = products[-head]
    low = products[-head - 1] + 1 if len(products) > head else 0
    shared = max((common_suffix(words, window) for window in windows), default=0)
    norms = [i for i in range(low, first) if kinds[i].cls == "norm"]
    if norms:
        return _with_casts(kinds, norms[-1], max(low, len(words) - shared))
    cut = min(first, max(low, len(words) - shared))
    while cut < first and kinds[cut].name.startswith("add"):
        cut += 1
    return cut


def _head_products(products: Words, windows: list[Words], known: frozenset[int]) -> int:
    """How many of the gap's products belong to the next layer's head."""
    counts = [common_suffix(products, [word for word in window if word in known]) for window in windows]
    return min((count for count in counts if 0 < count < len(products)), default=0)


def _before_widest_norm(kinds: list[Kind]) -> int:
    """Without a head to compare with: the last norm over the full hidden size opens the next layer."""
    norms = [i for i, kind in enumerate(kinds) if kind.cls == "norm"]
    if not norms:
        return len(kinds) // 2
    widest = max(kinds[i].width for i in norms)
    return _with_casts(kinds, [i for i in norms if kinds[i].width == widest][-1], 0)


def _with_casts(kinds: list[Kind], norm: int, low: int) -> int:
    """A norm with the casts right in front of it, as far as they are the head's own."""
    cut = norm
    while cut > low and kinds[cut - 1].cls in ("cast", "movement"):
        cut -= 1
    return cut


def backward_cut(words: Words, kinds: list[Kind], windows: list[Words], known: frozenset[int]) -> int:
    """Length of the tail in a gap between two backward cores: to the norm gradient that ends a layer, adds included."""
    products = [i for i, kind in enumerate(kinds) if kind.cls in MATMUL]
    own = [[word for word in window if word in known] for window in windows]
    counts = [common_prefix([words[i] for i in products], window) for window in own]
    tail = min((count for count in counts if 0 < count < len(products)), default=0)
    shared = max((common_prefix(words, window) for window in windows), default=0)
    if tail:
        low, high = products[tail - 1] + 1, products[tail]
    else:
        low, high = _around_first_wide_norm_grad(kinds, products)
    norms = [i for i in range(low, high) if kinds[i].cls == "norm_grad"]
    if not norms:
        return max(low, min(shared, high))
    cut = norms[0] + 1
    if shared <= norms[0]:
        while cut < high and kinds[cut].cls in ("cast", "elementwise"):
            cut += 1
    while cut < min(high, shared) and kinds[cut].cls in _LIGHT:
        cut += 1
    return cut


def _around_first_wide_norm_grad(kinds: list[Kind], products: list[int]) -> tuple[int, int]:
    norms = [i for i, kind in enumerate(kinds) if kind.cls == "norm_grad"]
    if not norms:
        return len(kinds) // 2, len(kinds) // 2
    widest = max(kinds[i].width for i in norms)
    first = next(i for i in norms if kinds[i].width == widest)
    return first, next((i for i in products if i > first), len(kinds))


def head_length(words: Words, kinds: list[Kind], heads: set[tuple[int, ...]], alike: list[Words]) -> int:
    """How many kernels right before a core at the edge of a pass are its layer's head.

    `alike` are the kernels before all such cores: where no head is known, what not all of them share is none.
    """
    if not heads:
        return min([_single_head(kinds), *(common_suffix(words, other) for other in alike)])
    exact = max(common_suffix(words, head) for head in heads)
    if any(exact == len(head) for head in heads):
        return exact
    return max([exact, *(_align(words[::-1], list(head)[::-1]) for head in heads)])


def tail_length(words: Words, kinds: list[Kind], tails: set[tuple[int, ...]], alike: list[Words]) -> int:
    """How many kernels right after a core at the edge of a pass are its layer's tail; `alike` as for heads."""
    if not tails:
        return min([_single_tail(kinds), *(common_prefix(words, other) for other in alike)])
    exact = max(common_prefix(words, tail) for tail in tails)
    if any(exact == len(tail) for tail in tails):
        return exact
    return max([exact, *(_align(words, list(tail)) for tail in tails)])


def _align(words: Words, template: Words) -> int:
    """Length of `words` that covers `template` in order with few foreign kernels between; 0 where most do not match."""
    position, matched, end = 0, 0, 0
    for wanted in template:
        window = words[position : position + _SKIP + 1]
        if wanted in window:
            position += window.index(wanted) + 1
            matched, end = matched + 1, position
    return end if matched >= 0.8 * len(template) else 0


def _single_head(kinds: list[Kind]) -> int:
    """Head of the only layer: from the first norm, or backward from behind the final norm's gradient."""
    opening = [i for i, kind in enumerate(kinds) if kind.cls == "norm"]
    if opening:
        return len(kinds) - opening[0]
    grads = [i for i, kind in enumerate(kinds) if kind.cls == "norm_grad"]
    if len(grads) > 1:
        return len(kinds) - _behind(kinds, grads[0])
    return len(kinds)


def _single_tail(kinds: list[Kind]) -> int:
    """Tail of the only layer: to the final norm, or backward to the gradient of the norm that opened it."""
    norms = [i for i, kind in enumerate(kinds) if kind.cls == "norm"]
    if len(norms) > 1:
        return norms[1]
    grads = [i for i, kind in enumerate(kinds) if kind.cls == "norm_grad"]
    return _behind(kinds, grads[-1]) if grads else len(kinds)


def _behind(kinds: list[Kind], norm: int) -> int:
    end = norm + 1
    while end < len(kinds) and kinds[end].cls in ("cast", "elementwise"):
        end += 1
    return end


def common_prefix(a: Words | tuple[int, ...], b: Words | tuple[int, ...]) -> int:
    """Length of the longest common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def common_suffix(a: Words | tuple[int, ...], b: Words | tuple[int, ...]) -> int:
    """Length of the longest common end."""
    return common_prefix(a[::-1], b[::-1])
