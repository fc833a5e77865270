"""Kernel names as each framework writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from analysis.synthetic.model import Slot
from analysis.synthetic.ops import Op
from analysis.synthetic.spec import GptSpec

NETWORK = "network-MFTrainOneStepCell/network-LlamaForCausalLM"
BARE = {"RmsNorm", "RmsNormGrad", "SwiGlu", "SwiGluGrad", "RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad"}
"""Called by their own name in torch_npu rather than through an aclnn function."""
GROUP_DIGITS = {"tp": "128", "dp": "097", "pp": "346", "ep": "512", "cp": "271", "world": "612"}


def slot_names(spec: GptSpec, slots: Sequence[Slot]) -> list[str]:
    """Name of every slot of a step, the same in every step."""
    if spec.mode == "torch":
        return _with_counter(slots, lambda op: op.type if op.type in BARE else device_name(op))
    if spec.mode == "pynative":
        return _with_counter(
            slots, lambda op: f"PynativeFramework::PyNativeLaunchTask::{op.primitive}/{device_name(op)}"
        )
    return _scoped(spec, slots)


def device_name(op: Op, via: str = "AiCore") -> str:
    stem = op.aclnn or f"aclnn{op.primitive}_{op.type}{via}"
    return f"{stem}_{op.type}"


def comm_name(op: Op, number: int) -> str:
    """hcom_allReduce__097_3_1: operation, last digits of the group, count within it."""
    assert op.comm is not None
    return f"{op.comm.op}_{GROUP_DIGITS[op.comm.group]}_{number}_1"


def _with_counter(slots: Sequence[Slot], name: Callable[[Op], str]) -> list[str]:
    counts: Counter[str] = Counter()
    return [_counted(slot.op, counts) if slot.op.comm else name(slot.op) for slot in slots]


def _counted(op: Op, counts: Counter[str]) -> str:
    assert op.comm is not None
    counts[op.comm.group] += 1
    return comm_name(op, counts[op.comm.group])


def _scoped(spec: GptSpec, slots: Sequence[Slot]) -> list[str]:
    first = _first_instances(slots)
    numbers: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    names = []
    for slot in slots:
        path = _path(spec, slot, first)
        full = f"{path}-op{numbers[path]}"
        numbers[path] += 1
        device = _counted(slot.op, counts) if slot.op.comm else device_name(slot.op, "Common")
        names.append(full if spec.jit_level == "O2" else f"Kernel::KernelLaunch::{full}/{device}")
    return names


def _first_instances(slots: Sequence[Slot]) -> dict[str, Slot]:
    """The forward kernel whose scope MindSpore hands to all gradients of its primitive."""
    first: dict[str, Slot] = {}
    for slot in slots:
        if slot.pass_ == "forward":
            first.setdefault(slot.op.primitive, slot)
    return first


def _path(spec: GptSpec, slot: Slot, first: dict[str, Slot]) -> str:
    op = slot.op
    if slot.part == "layer" and slot.pass_ != "backward":
        root = "recompute_Default" if spec.recompute else "Default"
        return f"{root}/{_module(spec, slot)}/{op.primitive}"
    if slot.pass_ != "backward":
        return f"Default/{_module(spec, slot)}/{op.primitive}"
    base = op.primitive.removesuffix("Grad")
    if op.scope == "@network" or op.comm:
        return f"Gradients/Default/{NETWORK}/{'AddN' if op.type == 'Add' else op.primitive}"
    owner = first.get(base, slot) if spec.backward_scopes == "first" else slot
    return f"Gradients/Default/{_module(spec, owner)}/Grad_{base}/{op.primitive}"


def _module(spec: GptSpec, slot: Slot) -> str:
    scope = slot.op.scope
    if scope == "@optimizer":
        return "optimizer-AdamW"
    if scope == "@loss":
        return f"{NETWORK}/loss-CrossEntropyLoss"
    model = f"{NETWORK}/model-LlamaModel"
    if scope.startswith("@network"):
        return NETWORK + scope.removeprefix("@network")
    if scope.startswith("@model"):
        return model + scope.removeprefix("@model")
    if slot.layer is not None:
        model += (
            f"/layers-CellList/{slot.layer}-{'LLamaDecodeLayer' if spec.norm == 'rms' else 'TransformerEncoderLayer'}"
        )
    return f"{model}/{scope}" if scope else model
