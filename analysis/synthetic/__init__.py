"""Writer of synthetic profiler dumps in the exact formats, with every value known by construction.

Tests, the demo and the benches use it; nothing that reads a dump does.
"""

from __future__ import annotations

from analysis.synthetic.capture import each_rank, write_capture, write_rank
from analysis.synthetic.spec import GptSpec, Mla, Moe
from analysis.synthetic.truth import GapTruth, KernelTruth, StepTruth, Truth

__all__ = [
    "GapTruth",
    "GptSpec",
    "KernelTruth",
    "Mla",
    "Moe",
    "StepTruth",
    "Truth",
    "each_rank",
    "write_capture",
    "write_rank",
]
