"""What MindSpore leaves of a CPU run: FRAMEWORK/cpu_op_detail_info, cpu_op_type_info and cpu_op_execute_timestamp.

Times are milliseconds, starts nanoseconds; shares are of 1. There is no communication on one CPU.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from analysis.synthetic.legacy import scope_of
from analysis.synthetic.truth import KernelTruth, Truth

PID = 4242


def write_cpu(folder: Path, rank: int, truth: Truth) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kernels = [kernel for kernel in truth.kernels if not kernel.is_communication]
    by_name: dict[str, list[KernelTruth]] = defaultdict(list)
    by_primitive: dict[str, list[KernelTruth]] = defaultdict(list)
    for kernel in kernels:
        name = scope_of(kernel.name)
        by_name[name].append(kernel)
        by_primitive[_primitive(name)].append(kernel)
    whole = sum(kernel.duration_ns for kernel in kernels)
    _write_detail(folder / f"cpu_op_detail_info_{rank}.csv", by_name, whole)
    _write_types(folder / f"cpu_op_type_info_{rank}.csv", by_primitive, whole, len(truth.steps))
    _write_timestamps(folder / f"cpu_op_execute_timestamp_{rank}.txt", by_name)


def _primitive(name: str) -> str:
    return name.rsplit("/", 1)[-1].split("-op")[0]


def _write_detail(path: Path, by_name: dict[str, list[KernelTruth]], whole: int) -> None:
    head = "op_side,op_type,op_name,full_op_name,op_occurrences,op_total_time(ms),op_avg_time(ms),total_proportion"
    lines = [f"{head},subgraph,pid"]
    for name, kernels in by_name.items():
        total = sum(kernel.duration_ns for kernel in kernels)
        numbers = f"{len(kernels)},{total / 1e6!r},{total / len(kernels) / 1e6!r},{total / whole:.8g}"
        short = name.rsplit("/", 1)[-1]
        lines.append(f"Host,{_primitive(name)},{short},{name},{numbers},{name.split('/')[0]},{PID}")
    _write(path, lines)


def _write_types(path: Path, by_primitive: dict[str, list[KernelTruth]], whole: int, steps: int) -> None:
    lines = ["op_type,type_occurrences,execution_frequency(per-step),total_compute_time,avg_time(ms),percent"]
    for primitive, kernels in by_primitive.items():
        total, count = sum(kernel.duration_ns for kernel in kernels), len(kernels)
        times = f"{total / 1e6!r},{total / count / 1e6!r},{total / whole:.6g}"
        lines.append(f"{primitive},{count},{count // steps},{times}")
    _write(path, lines)


def _write_timestamps(path: Path, by_name: dict[str, list[KernelTruth]]) -> None:
    """name;HostCpuOps;start,duration,thread for each execution, each followed by a blank."""
    lines = []
    for name, kernels in by_name.items():
        runs = "".join(f"{kernel.start_ns},{kernel.duration_ns / 1e6!r},0 " for kernel in kernels)
        lines.append(f"{name};HostCpuOps;{runs}")
    _write(path, lines)


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
