"""What `msprof --export` leaves under PROF_*: op_summary, op_statistic, task_time, api_statistic and info.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.synthetic.forms import FORMS
from analysis.synthetic.meta import write_json
from analysis.synthetic.model import Slot
from analysis.synthetic.spec import GptSpec
from analysis.synthetic.text import (
    CUBE_CORES,
    Rows,
    microseconds,
    trimmed,
    write_api_statistic,
    write_kernel_details,
    write_op_statistic,
)
from analysis.synthetic.truth import Truth

PROF = "PROF_000001_20260101120000123_ABCDEFGHIJKLMNOP"
STAMP = "20260101120001"
TITLES = {
    "Name": "Op Name",
    "Type": "OP Type",
    "Accelerator Core": "Task Type",
    "Start Time(us)": "Task Start Time(us)",
    "Duration(us)": "Task Duration(us)",
    "Wait Time(us)": "Task Wait Time(us)",
}
OPERATIONS_PER_CYCLE = 8192


def write_msprof(
    folder: Path,
    spec: GptSpec,
    device: int,
    slots: Sequence[Slot],
    names: Sequence[str],
    steps: Sequence[Rows],
    truth: Truth,
) -> None:
    """Files of one device under `folder`/PROF_*; the clock in info.json makes the peak that the spec names."""
    output = folder / PROF / "mindstudio_profiler_output"
    output.mkdir(parents=True, exist_ok=True)
    summary = output / f"op_summary_{STAMP}.csv"
    own = [name.rsplit("/", 1)[-1] if "::" in name else name for name in names]
    write_kernel_details(summary, spec, FORMS["cann8.5"], device, slots, own, steps, TITLES)
    write_op_statistic(output / f"op_statistic_{STAMP}.csv", device, truth.kernels)
    write_api_statistic(output / f"api_statistic_{STAMP}.csv", True, spec, len(truth.kernels))
    _write_task_time(output / f"task_time_{STAMP}.csv", device, truth)
    _write_info(folder / PROF / f"device_{device}", spec, device)


def _write_task_time(path: Path, device: int, truth: Truth) -> None:
    lines = ["Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),task_stop(us)"]
    for number, kernel in enumerate(truth.kernels):
        if not kernel.is_communication:
            times = (
                trimmed(kernel.duration_ns),
                *map(microseconds, (kernel.start_ns, kernel.start_ns + kernel.duration_ns)),
            )
            name = kernel.name.rsplit("/", 1)[-1]
            lines.append(f"{device},{name},{kernel.core},3,{number + 1},{times[0]},{times[1]}\t,{times[2]}\t")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")


def _write_info(folder: Path, spec: GptSpec, device: int) -> None:
    folder.mkdir(exist_ok=True)
    megahertz = round(spec.peak_tflops * 1e6 / (CUBE_CORES * OPERATIONS_PER_CYCLE))
    chip = {"id": device, "ai_core_num": CUBE_CORES, "aiv_num": 2 * CUBE_CORES, "aic_frequency": str(megahertz)}
    write_json(
        folder / f"info.json.{device}",
        {"DeviceInfo": [{**chip, "aiv_frequency": str(megahertz)}], "devices": str(device)},
    )
