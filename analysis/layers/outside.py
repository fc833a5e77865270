"""What lies between passes through the layers: embedding, head and loss, optimizer, and the rest."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.layers.track import MATMUL, Kind

_LIGHT = ("cast", "movement", "elementwise")
NO_PASS, FORWARD_PASS, BACKWARD_PASS = "none", "forward", "backward"


@dataclass(frozen=True)
class Piece:
    """Main kernels [start, end) of one part outside the layers; `side` says whose micro-batch they share."""

    start: int
    end: int
    part: str
    pass_: str
    side: int = 0  # -1: of the pass before, 1: of the pass after, 0: of none


def split_outside(kinds: list[Kind], left: str | None, right: str | None) -> list[Piece]:
    """Cut a stretch outside layers. `left` and `right` are the passes around it, null at the ends of a step."""
    low, high, end = 0, len(kinds), len(kinds)
    pieces: list[Piece] = []
    if left == BACKWARD_PASS:
        low = _embedding_grad_end(kinds)
        pieces.append(Piece(0, low, "embedding", BACKWARD_PASS, -1))
    if right == FORWARD_PASS:
        high = next((i for i in range(low, end) if kinds[i].cls == "embedding" and not kinds[i].is_grad), end)
    pieces += _middle(kinds, low, high, left, right)
    pieces.append(Piece(high, end, "embedding", FORWARD_PASS, 1))
    return [piece for piece in pieces if piece.end > piece.start]


def _embedding_grad_end(kinds: list[Kind]) -> int:
    """End of the embedding's gradient: the last such kernel and what goes on with its table."""
    grads = [i for i, kind in enumerate(kinds) if kind.cls == "embedding" and kind.is_grad]
    if not grads:
        return 0
    table = kinds[grads[-1]].out_elements
    end = grads[-1] + 1
    while end < len(kinds) and table and kinds[end].elements == table and kinds[end].cls in _LIGHT:
        end += 1
    return end


def _middle(kinds: list[Kind], low: int, high: int, left: str | None, right: str | None) -> list[Piece]:
    if left is None:
        return [Piece(low, high, "other", NO_PASS)]
    if right is None:
        begin = low if left == BACKWARD_PASS else _optimizer_begin(kinds, low, high)
        done = _optimizer_end(kinds, begin, high)
        head = _head(kinds, low, begin, left) if begin > low else []
        return [*head, Piece(begin, done, "optimizer", NO_PASS), Piece(done, high, "other", NO_PASS)]
    if any(kind.cls in MATMUL or kind.cls == "loss" for kind in kinds[low:high]):
        return _head(kinds, low, high, left)
    return [Piece(low, high, "other", NO_PASS)]


def _optimizer_begin(kinds: list[Kind], low: int, high: int) -> int:
    """Without a backward pass in sight: the first weight-sized kernel before the first update, at most."""
    updates = [i for i in range(low, high) if kinds[i].cls == "optimizer"]
    if not updates:
        return high
    begin = updates[0]
    products = [i for i in range(low, begin) if kinds[i].cls in MATMUL or kinds[i].cls == "loss"]
    floor = products[-1] + 1 if products else low
    scalars = [i for i in range(floor, begin) if kinds[i].rank == 1 and kinds[i].elements >= 1 << 20]
    return scalars[0] if scalars else begin


def _optimizer_end(kinds: list[Kind], low: int, high: int) -> int:
    """Behind the last update, with the copies of parameters that follow it."""
    updates = [i for i in range(low, high) if kinds[i].cls == "optimizer"]
    if not updates:
        return high
    end = updates[-1] + 1
    while end < high and kinds[end].cls in ("cast", "movement"):
        end += 1
    return end


def _head(kinds: list[Kind], low: int, high: int, left: str) -> list[Piece]:
    """Final norm, head and loss. Backward starts at the first gradient kernel, or at the second product."""
    products = [i for i in range(low, high) if kinds[i].cls in MATMUL]
    grads = [i for i in range(low, high) if kinds[i].is_grad]
    turn = min([*grads[:1], *products[1:2], high]) if left == FORWARD_PASS else low
    opened = _norm_end(kinds, low, products[0] if products and products[0] < turn else turn)
    closed = _norm_begin(kinds, max(turn, products[-1] + 1 if products else turn), high)
    return [
        Piece(low, opened, "final_norm", FORWARD_PASS, -1),
        Piece(opened, turn, "head_loss", FORWARD_PASS, -1),
        Piece(turn, closed, "head_loss", BACKWARD_PASS, 1),
        Piece(closed, high, "final_norm", BACKWARD_PASS, 1),
    ]


def _norm_end(kinds: list[Kind], low: int, high: int) -> int:
    norms = [i for i in range(low, high) if kinds[i].cls == "norm"]
    if not norms:
        return low
    size, end = kinds[norms[-1]].elements, norms[-1] + 1
    while end < high and kinds[end].cls == "cast" and kinds[end].elements == size:
        end += 1
    return end


def _norm_begin(kinds: list[Kind], low: int, high: int) -> int:
    norms = [i for i in range(low, high) if kinds[i].cls == "norm_grad"]
    if not norms:
        return high
    begin = norms[0]
    while begin > low and kinds[begin - 1].cls == "cast" and kinds[begin - 1].elements == kinds[norms[0]].elements:
        begin -= 1
    return begin
