"""Names of the blocks of one layer, from the order, class and size of its kernels."""

from __future__ import annotations

from collections.abc import Callable

from analysis.layers.track import MATMUL, Kind

BLOCKS = (
    *("norm_attention", "qkv", "position", "attention_core", "attention_out", "residual"),
    *("norm_ffn", "ffn_up", "activation", "ffn_down", "moe_router", "moe_dispatch", "moe_experts"),
    *("movement", "communication", "embedding", "final_norm", "head_loss", "optimizer", "gradient_sync", "other"),
    *("embedding_gradients", "pipeline_transfers"),
)
_ROUTER = ("softmax", "softmax_grad")


def name_blocks(
    kinds: list[Kind],
    first: int,
    last: int,
    *,
    backward: bool,
    inner: tuple[int, int] | None = None,
    alone: bool = False,
) -> list[str]:
    """Block of each kernel of a layer whose attention core is kernels first to last, both included.

    Where a layer has two cores, `inner` is the last kernel of the first and the first of the second. `alone`: backward
    without gradients of weights, which run elsewhere.

    A kernel that moves or converts data gets the block it lies in; a Cast the block of the kernel beside it that it
    serves: a norm or rotary kernel that wants another dtype, or a product whose operand or result it converts.
    """
    names = _backward(kinds, first, last, 1 if alone else 2) if backward else _forward(kinds, first, last)
    if inner is not None and inner[0] < inner[1]:
        a, b = inner
        names[a + 1 : b] = (_between_grads if backward else _between)(kinds[a + 1 : b])
    served = [_served(kinds, i) if kind.cls == "cast" else None for i, kind in enumerate(kinds)]
    return [name if at is None else names[at] for name, at in zip(names, served, strict=True)]


def _served(kinds: list[Kind], i: int) -> int | None:
    """The kernel just before or after the Cast at i that it is there for; None where that is not plain."""
    beside = [j for j in (i - 1, i + 1) if 0 <= j < len(kinds)]
    same = [j for j in beside if kinds[i].elements in (kinds[j].elements, kinds[j].out_elements)]
    norm = next((j for j in same if kinds[j].cls in ("norm", "norm_grad")), None)
    turned = next((j for j in same if _is_position(kinds[j])), None)
    product = next((j for j in reversed(beside) if _is_product(kinds[j]) and (j > i or j in same)), None)
    return next((j for j in (norm, turned, product) if j is not None), None)


def _positions(kinds: list[Kind], start: int, end: int, wanted: Callable[[Kind], bool]) -> list[int]:
    return [i for i in range(start, end) if wanted(kinds[i])]


def _is_product(kind: Kind) -> bool:
    return kind.cls in MATMUL


def _is_position(kind: Kind) -> bool:
    return kind.cls in ("position", "position_grad") or kind.name in ("cos", "sin")


def _is_add(kind: Kind) -> bool:
    return kind.name in ("add", "addn", "addext", "adds", "addv", "inplaceadd", "assignadd")


def _is_expert(kind: Kind) -> bool:
    return kind.cls == "grouped_matmul" or (kind.cls == "matmul" and kind.batched)


def _between(kinds: list[Kind]) -> list[str]:
    """Between two cores of one layer: output of the first, then norm and projections of the second."""
    end = len(kinds)
    products = _positions(kinds, 0, end, _is_product)
    norm = next((i for i in range(products[0], end) if kinds[i].cls == "norm"), end) if products else end
    later = [i for i in products if i > norm]
    opened = later[0] if later else end
    names = ["attention_core"] * (products[0] if products else end)
    names += _joined(kinds, len(names), norm, "attention_out")
    names += ["norm_attention"] * (opened - norm) + ["qkv"] * (end - opened)
    return [
        "attention_core" if later and i > later[-1] and not _is_add(k) and k.cls != "norm" else name
        for i, (k, name) in enumerate(zip(kinds, names, strict=True))
    ]


def _between_grads(kinds: list[Kind]) -> list[str]:
    """The same backward: gradients of the second core's projections and norm, then of the first one's output."""
    norms = _positions(kinds, 0, len(kinds), lambda k: k.cls == "norm_grad")
    norm = norms[-1] if norms else len(kinds)
    behind = next(iter(_positions(kinds, norm, len(kinds), _is_product)), len(kinds))
    names = _backward_tail(kinds[:behind], 0)
    return names + ["attention_out"] * (len(kinds) - behind)


# Forward


def _forward(kinds: list[Kind], first: int, last: int) -> list[str]:
    core = ["attention_core" if not _is_product(k) or k.batched else "qkv" for k in kinds[first : last + 1]]
    products = _positions(kinds, last + 1, len(kinds), _is_product)
    out = products[0] if products else len(kinds)
    norm = next(iter(_positions(kinds, out, len(kinds), lambda k: k.cls == "norm")), None)
    middle = norm if norm is not None else (products[1] if len(products) > 1 else len(kinds))
    names = _forward_head(kinds, first) + core
    names += ["attention_core"] * (out - last - 1)
    names += _joined(kinds, out, middle, "attention_out")
    return names + _forward_ffn(kinds, middle)


def _forward_head(kinds: list[Kind], first: int) -> list[str]:
    products = _positions(kinds, 0, first, _is_product)
    turned = _positions(kinds, 0, first, _is_position)
    begin = products[0] if products else first
    names = []
    for i in range(first):
        if i < begin:
            names.append("norm_attention")
        elif _is_product(kinds[i]) or kinds[i].cls == "norm" or not turned:
            names.append("qkv" if i <= products[-1] or kinds[i].cls == "norm" else _unturned(kinds, products[-1], i))
        elif turned[0] <= i <= turned[-1]:
            names.append("position")
        else:
            names.append("qkv" if i < turned[0] else "attention_core")
    return names


def _unturned(kinds: list[Kind], last_product: int, i: int) -> str:
    """Behind the last projection with no rotary kernel: a bias, rotation written out, else what the core needs."""
    between = kinds[last_product + 1 : i]
    if _is_add(kinds[i]) and all(kind.moves for kind in between):
        return "qkv"
    return (
        "position" if kinds[i].name in ("neg", "mul", "add") and _written_out(kinds, last_product) else "attention_core"
    )


def _written_out(kinds: list[Kind], start: int) -> bool:
    rest = [kind.name for kind in kinds[start + 1 :]]
    return "neg" in rest[:40] and rest[:40].count("mul") >= 2


def _joined(kinds: list[Kind], start: int, end: int, block: str) -> list[str]:
    """A projection and what follows it up to the norm: bias, dropout, and the last Add, which is the residual."""
    adds = _positions(kinds, start, end, lambda k: _is_add(k) or k.name == "biasadd")
    last = adds[-1] if adds and kinds[adds[-1]].name != "biasadd" else -1
    return ["residual" if i == last or kinds[i].cls == "random" else block for i in range(start, end)]


def _forward_ffn(kinds: list[Kind], start: int) -> list[str]:
    end = len(kinds)
    products = _positions(kinds, start, end, _is_product)
    heavy = _positions(kinds, start, end, lambda k: _is_product(k) or k.cls == "moe")
    begin = heavy[0] if heavy else end
    names = ["norm_ffn"] * (begin - start)
    experts = _positions(kinds, begin, end, _is_expert)
    moe = _positions(kinds, begin, end, lambda k: k.cls == "moe")
    if not experts and not moe:
        return names + _dense(kinds, begin, end, products)
    return names + _moe(kinds, begin, end, experts, moe)


def _dense(kinds: list[Kind], begin: int, end: int, products: list[int]) -> list[str]:
    """All projections but the last lead up; between them a bias stays with its projection, the rest is activation."""
    if not products:
        return _joined(kinds, begin, end, "ffn_down")
    down = products[-1]
    names = []
    for i in range(begin, down):
        bias = kinds[i].name == "biasadd" or (_is_add(kinds[i]) and _follows_product(kinds, i, begin))
        names.append("ffn_up" if _is_product(kinds[i]) or bias else "activation")
    return names + _joined(kinds, down, end, "ffn_down")


def _follows_product(kinds: list[Kind], i: int, begin: int) -> bool:
    j = i - 1
    while j >= begin and kinds[j].moves:
        j -= 1
    return j >= begin and _is_product(kinds[j])


def _moe(kinds: list[Kind], begin: int, end: int, experts: list[int], moe: list[int]) -> list[str]:
    """Router, dispatch, experts, dispatch back; dense projections among or after them are a shared expert."""
    names = ["moe_dispatch"] * (end - begin)
    gates = [i for i in moe if _is_gate(kinds[i])]
    dispatch = next((i for i in moe if i not in gates), experts[0] if experts else end)
    inside = (experts[0], experts[-1]) if experts else (end, end)
    shared = []
    routed = False
    for i in range(begin, end):
        kind = kinds[i]
        if inside[0] <= i <= inside[1] and (not _is_product(kind) or _is_expert(kind)):
            names[i - begin] = "moe_experts" if kind.cls != "moe" else "moe_dispatch"
        elif _is_product(kind) and not routed and i < dispatch:
            names[i - begin], routed = "moe_router", True
        elif _is_product(kind):
            shared.append(i)
        elif i < dispatch or i in gates:
            names[i - begin] = "moe_router"
    behind = (moe or experts)[-1] + 1
    tail = [i for i in shared if i >= behind]
    if tail:
        names[tail[0] - begin :] = _dense(kinds, tail[0], end, tail)
        behind = tail[0]
    else:
        names[behind - begin :] = _joined(kinds, behind, end, "moe_dispatch")
    early = [i for i in shared if i < behind]
    for i in early:
        names[i - begin] = "ffn_down" if i == early[-1] and not tail else "ffn_up"
    return names


def _is_gate(kind: Kind) -> bool:
    return any(word in kind.name for word in ("gating", "topk", "router"))


# Backward


def _backward(kinds: list[Kind], first: int, last: int, pair: int) -> list[str]:
    """`pair` is the number of products for each projection: gradient of the input, and of the weight."""
    core = ["attention_core" if not _is_product(k) or k.batched else "qkv" for k in kinds[first : last + 1]]
    behind = last + 1
    if sum(kind.cls == "attention_grad" for kind in kinds[first:behind]) > 1:
        # round a ring: what comes back is added to the gradients of the own keys and values
        while behind < len(kinds) and _is_add(kinds[behind]):
            behind += 1
    core += ["attention_core"] * (behind - last - 1)
    return _backward_head(kinds, first, pair) + core + _backward_tail(kinds, behind)


def _backward_head(kinds: list[Kind], first: int, pair: int) -> list[str]:
    """Feed-forward gradients up to the norm's, then those of the attention output."""
    norms = _positions(kinds, 0, first, lambda k: k.cls == "norm_grad")
    products = _positions(kinds, 0, first, lambda k: _is_product(k))
    split = norms[-1] if norms else (products[-2] if len(products) > 2 else first)
    names = _backward_ffn(kinds, split, pair)
    out = next((i for i in products if i > split), first)
    for i in range(split, out):
        names.append(_after_norm_grad(kinds[i], "norm_ffn"))
    return names + ["attention_out"] * (first - out)


def _after_norm_grad(kind: Kind, norm: str) -> str:
    """A norm's gradient, the accumulation of its weight (one axis) and the residual's Add (the hidden state)."""
    if kind.cls in ("norm_grad", "norm") or kind.rank == 1:
        return norm
    return "residual" if _is_add(kind) or kind.cls == "random" else norm


def _backward_ffn(kinds: list[Kind], end: int, pair: int) -> list[str]:
    experts = _positions(kinds, 0, end, _is_expert)
    moe = _positions(kinds, 0, end, lambda k: k.cls == "moe")
    if not experts and not moe:
        return _backward_dense(kinds, 0, end, pair)
    return _backward_moe(kinds, end, experts, moe, pair)


def _backward_dense(kinds: list[Kind], begin: int, end: int, pair: int) -> list[str]:
    """The first pair of products is the down projection's, input and weight; the rest lead up. A norm among them is
    the layer's own, computed again."""
    names: list[str] = []
    seen = 0
    for i in range(begin, end):
        kind = kinds[i]
        if _is_product(kind):
            seen += 1
        if _is_product(kind) or _is_add(kind) or kind.cls == "reduction":
            names.append("ffn_down" if seen <= pair else "ffn_up")
        elif kind.cls == "norm":
            names.append("norm_ffn")
        elif kind.cls == "random" and not seen:
            names.append("residual")
        else:
            names.append("activation")
    return names


def _backward_moe(kinds: list[Kind], end: int, experts: list[int], moe: list[int], pair: int) -> list[str]:
    inside = (experts[0], experts[-1]) if experts else (end, end)
    dispatched = [i for i in moe if not _is_gate(kinds[i])] or experts
    names = ["moe_dispatch"] * end
    shared = [i for i in range(dispatched[0]) if _is_product(kinds[i])]
    if shared:
        names[: dispatched[0]] = _backward_dense(kinds, 0, dispatched[0], pair)
    for i in range(dispatched[0], end):
        if inside[0] <= i <= inside[1] and kinds[i].cls != "moe":
            names[i] = "moe_experts"
        elif i > dispatched[-1] or _is_gate(kinds[i]) or kinds[i].cls in _ROUTER:
            names[i] = "moe_router"
    return names


def _backward_tail(kinds: list[Kind], start: int) -> list[str]:
    """Position, projections with their inner norms, then the norm that opened the layer."""
    end = len(kinds)
    products = _positions(kinds, start, end, _is_product)
    behind = products[-1] + 1 if products else start
    norm = next((i for i in range(behind, end) if kinds[i].cls == "norm_grad"), end)
    turned = _positions(kinds, start, norm, _is_position)
    width = kinds[norm].elements if norm < end else 0
    names = []
    for i in range(start, norm):
        if kinds[i].cls == "norm" and width and kinds[i].elements == width:
            names.append("norm_attention")
            continue
        near = bool(turned) and turned[0] <= i and _is_near(kinds, i, start)
        names.append("position" if near and not _is_product(kinds[i]) else "qkv")
    return names + [_after_norm_grad(kinds[i], "norm_attention") for i in range(norm, end)]


def _is_near(kinds: list[Kind], i: int, start: int) -> bool:
    """Whether a kernel is a rotary gradient or hangs on one: only copies and additions between."""
    while i >= start:
        if _is_position(kinds[i]):
            return True
        if not (kinds[i].moves or kinds[i].cls == "elementwise"):
            return False
        i -= 1
    return False
