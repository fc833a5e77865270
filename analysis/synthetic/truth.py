"""What is true of a synthetic dump, to the nanosecond."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class KernelTruth(NamedTuple):
    """One kernel. `step` is as written, null without a schedule; `layer` counts from 0 over the whole model."""

    step: str | None
    name: str
    type: str
    core: str
    start_ns: int
    duration_ns: int
    part: str
    layer: int | None
    block: str
    pass_: str
    micro_batch: int | None
    flops: int

    @property
    def is_communication(self) -> bool:
        return self.core == "COMMUNICATION"


class StepTruth(NamedTuple):
    """One step; step_ns = computing + communication not overlapped + free, exactly."""

    step: str | None
    start_ns: int
    step_ns: int
    computing_ns: int
    communication_ns: int
    communication_not_overlapped_ns: int
    overlapped_ns: int
    free_ns: int
    bubble_ns: int
    preparing_ns: int
    stage_ns: int
    """torch_npu: the step. MindSpore: span of all communication less the bubble, 0 on one card."""

    @property
    def device_ratio(self) -> float:
        return 1 - self.free_ns / self.step_ns


class CommTruth(NamedTuple):
    """One communication operation of a rank. `elapse_ns` = `transit_ns` + `wait_ns`."""

    step: str | None
    name: str
    op: str
    group: str
    p2p: bool
    start_ns: int
    elapse_ns: int
    transit_ns: int
    wait_ns: int
    size_bytes: int


class GapTruth(NamedTuple):
    """An idle stretch of the device and why it was: data_wait, sync, host_op, gc, memory_alloc or launch_gap."""

    step: str | None
    start_ns: int
    duration_ns: int
    cause: str


@dataclass(frozen=True)
class Truth:
    """Everything that is in one rank's dump, known by construction."""

    folder: Path
    rank: int
    stage: int
    layers: tuple[int, ...]
    """Layers of this rank, numbered over the whole model, in the order in which the rank counts them."""
    kernels: list[KernelTruth]
    steps: list[StepTruth]
    communication: list[CommTruth] = field(default_factory=list)
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    gaps: list[GapTruth] = field(default_factory=list)
    """Known where a trace was written."""

    @property
    def first_layer(self) -> int:
        return self.layers[0]

    def total_ns(self, where: Callable[[KernelTruth], bool]) -> int:
        return sum(kernel.duration_ns for kernel in self.kernels if where(kernel))

    @property
    def compute_ns(self) -> int:
        """Sum of all kernels that are not communication."""
        return self.total_ns(lambda k: not k.is_communication)

    @property
    def communication_ns(self) -> int:
        return self.total_ns(lambda k: k.is_communication)

    @property
    def cast_ns(self) -> int:
        return self.total_ns(lambda k: k.type == "Cast")

    @property
    def cast_ratio(self) -> float:
        return self.cast_ns / self.compute_ns

    @property
    def flops(self) -> int:
        return sum(kernel.flops for kernel in self.kernels)

    def by(self, *keys: str, compute_only: bool = False) -> dict[tuple[object, ...], int]:
        """Summed duration by any fields of KernelTruth, e.g. by("layer", "pass_")."""
        return _summed(((tuple(getattr(k, key) for key in keys), k) for k in self.kernels), compute_only)


def _summed(
    rows: Iterable[tuple[tuple[object, ...], KernelTruth]], compute_only: bool
) -> dict[tuple[object, ...], int]:
    sums: dict[tuple[object, ...], int] = defaultdict(int)
    for key, kernel in rows:
        if not (compute_only and kernel.is_communication):
            sums[key] += kernel.duration_ns
    return dict(sums)
