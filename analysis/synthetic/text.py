"""kernel_details.csv and the other CSV files, written as the profilers write them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.synthetic.forms import STEP_TRACE, Form
from analysis.synthetic.model import Slot
from analysis.synthetic.ops import Op
from analysis.synthetic.spec import GptSpec
from analysis.synthetic.truth import KernelTruth, StepTruth, Truth

CUBE_CORES = 20
MEMORY_SAMPLES = 40
NAME_MARK = "\0"
DYNAMIC = {
    "Step Id",
    "Step ID",
    "Task ID",
    "Start Time(us)",
    "Duration(us)",
    "Wait Time(us)",
    "aicore_time(us)",
    "aiv_time(us)",
}


@dataclass(frozen=True)
class Rows:
    """Kernels of one step as they are about to be written."""

    step: str | None
    start: list[int]
    duration: list[int]
    wait: list[int]


def microseconds(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def trimmed(ns: int) -> str:
    """Microseconds as the 2023 tools wrote them: no trailing zeros, no dot where none is needed."""
    return microseconds(ns).rstrip("0").rstrip(".")


def write_kernel_details(
    path: Path,
    spec: GptSpec,
    form: Form,
    device: int,
    slots: Sequence[Slot],
    names: Sequence[str],
    steps: Sequence[Rows],
    titles: Mapping[str, str] | None = None,
) -> None:
    """One row per kernel. `titles` are other names for columns, as the export of msprof itself has."""
    columns = form.names
    ops = {id(slot.op): slot.op for slot in slots}
    lines_of = {number: _template(columns, _static_cells(spec, form, device, op)) for number, op in ops.items()}
    templates = [lines_of[id(slot.op)].replace(NAME_MARK, name) for slot, name in zip(slots, names, strict=True)]
    dynamic = [name for name in columns if name in DYNAMIC]
    is_comm = [slot.op.comm is not None for slot in slots]
    on_cube = [slot.op.core in {"AI_CORE", "MIX_AIC"} for slot in slots]
    with path.open("w", encoding="utf-8", newline="") as out:
        out.write(",".join((titles or {}).get(name, name) for name in columns) + form.newline)
        for number, rows in enumerate(steps):
            cells = [_dynamic_cells(name, form, rows, is_comm, on_cube, number) for name in dynamic]
            lines = [template % values for template, values in zip(templates, zip(*cells, strict=True), strict=True)]
            out.write(form.newline.join(lines) + form.newline)


def _dynamic_cells(
    column: str, form: Form, rows: Rows, is_comm: Sequence[bool], on_cube: Sequence[bool], number: int
) -> list[str]:
    time = microseconds if form.tab else trimmed
    if column in {"Step Id", "Step ID"}:
        return [rows.step or ""] * len(is_comm)
    if column == "Task ID":
        first = 1 + number * len(is_comm)
        return ["N/A" if comm else str(first + i) for i, comm in enumerate(is_comm)]
    if column == "Start Time(us)":
        end = "\t" if form.tab else ""
        return [time(ns) + end for ns in rows.start]
    if column == "Duration(us)":
        return [time(ns) for ns in rows.duration]
    if column == "Wait Time(us)":
        return [time(ns) for ns in rows.wait]
    wants_cube = column == "aicore_time(us)"
    return [
        "N/A" if comm else microseconds(ns * 97 // 100) if cube == wants_cube else "0.0"
        for ns, comm, cube in zip(rows.duration, is_comm, on_cube, strict=True)
    ]


def _template(columns: Sequence[str], statics: dict[str, str]) -> str:
    """A row with a hole for each value that differs from launch to launch, and a mark where its name goes."""
    cells = ["%s" if column in DYNAMIC else statics[column].replace("%", "%%") for column in columns]
    return ",".join(cells)


def _static_cells(spec: GptSpec, form: Form, device: int, op: Op) -> dict[str, str]:
    comm, torch = op.comm is not None, spec.mode == "torch"
    blind = form.level0 and form.pmu is None
    block = block_count(op)
    cells = {
        "Name": NAME_MARK,
        "Device_id": str(device),
        "Model ID": "4294967295",
        "Stream ID": "N/A" if comm else "2" if torch else "3",
        "Type": "N/A" if blind else op.type,
        "OP State": "N/A" if comm else "dynamic" if spec.mode != "graph" else "static",
        "Accelerator Core": form.comm_core if comm else "N/A" if blind else op.core,
        "Block Dim": str(block),
        "Block Num": str(block),
        "Mix Block Dim": "N/A" if comm else str(block if op.core.startswith("MIX") else 0),
        "Mix Block Num": "N/A" if comm else str(block if op.core.startswith("MIX") else 0),
        "HF32 Eligible": "N/A" if comm else "NO",
        "Context ID": "N/A",
    }
    return cells | _tensor_cells(op) | counters(spec, form, op)


def block_count(op: Op) -> int:
    """On how many cores the kernel runs."""
    if op.comm:
        return 0
    if op.core in {"AI_CORE", "MIX_AIC"}:
        return CUBE_CORES
    return max(1, min(2 * CUBE_CORES, op.bytes // 32_768))


def _tensor_cells(op: Op) -> dict[str, str]:
    """Shapes stand in quotes of their own inside the quoted cell."""
    texts = tensor_texts(op)
    quoted = {name: f'"""{text}"""' for name, text in texts.items() if name.endswith("Shapes") and text != "N/A"}
    return texts | quoted


def tensor_texts(op: Op) -> dict[str, str]:
    """Shapes, dtypes and formats of a kernel, each a text joined by semicolons."""
    texts: dict[str, str] = {}
    for side, tensors in (("Input", op.inputs), ("Output", op.outputs)):
        if not tensors:
            texts |= {f"{side} {what}": "N/A" for what in ("Shapes", "Data Types", "Formats")}
            continue
        texts[f"{side} Shapes"] = ";".join(",".join(map(str, shape)) if shape else "" for shape, _ in tensors)
        texts[f"{side} Data Types"] = ";".join(dtype for _, dtype in tensors)
        texts[f"{side} Formats"] = ";".join(["ND"] * len(tensors))
    return texts


def counters(spec: GptSpec, form: Form, op: Op) -> dict[str, str]:
    """Cells of counters but times: cube kernels keep their matrix unit busy, the others copy."""
    names = [name for name in form.names[len(form.columns.split(",")) :] if name not in DYNAMIC]
    if op.comm:
        return dict.fromkeys(names, "N/A")
    cube = op.core in {"AI_CORE", "MIX_AIC"}
    values = dict.fromkeys(names, "0.0")
    busy = {"aic_mac_ratio": "0.84", "aic_mte2_ratio": "0.55", "aic_mte1_ratio": "0.48", "aic_fixpipe_ratio": "0.09"}
    if not cube:
        busy = {"aiv_vec_ratio": "0.21", "aiv_mte2_ratio": "0.86", "aiv_mte3_ratio": "0.41", "aiv_scalar_ratio": "0.05"}
    values |= {name: value for name, value in busy.items() if name in values}
    if cube and "cube_utilization(%)" in values:
        values["cube_utilization(%)"] = f"{100 * spec.cube_efficiency:.3f}"
    return values


def write_step_trace(path: Path, columns: int, newline: str, device: int, steps: Sequence[StepTruth]) -> None:
    lines = [STEP_TRACE[columns]]
    for step in steps:
        values = [
            step.computing_ns,
            step.communication_not_overlapped_ns,
            step.overlapped_ns,
            step.communication_ns,
            step.free_ns,
            step.stage_ns,
            step.bubble_ns,
            step.communication_not_overlapped_ns - step.bubble_ns,
            step.preparing_ns,
        ]
        cells = [step.step or "", *[microseconds(value) for value in values]]
        cells = cells[:9] if columns == 9 else cells
        lines.append(",".join([str(device), *cells] if columns == 11 else cells))
    path.write_text(newline.join(lines) + newline, encoding="utf-8", newline="")


def write_op_statistic(path: Path, device: int | None, kernels: Sequence[KernelTruth]) -> None:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for kernel in kernels:
        if not kernel.is_communication:
            groups[kernel.type, kernel.core].append(kernel.duration_ns)
    whole = sum(map(sum, groups.values()))
    lines = ["OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)"]
    for (type, core), times in sorted(groups.items(), key=lambda item: -sum(item[1])):
        total = sum(times)
        cells = [type, core, str(len(times))]
        cells += [trimmed(total), trimmed(min(times)), f"{total / len(times) / 1000:.3f}", trimmed(max(times))]
        lines.append(",".join([*cells, f"{100 * total / whole:.3f}"]))
    if device is not None:
        lines = [f"{'Device_id' if i == 0 else device},{line}" for i, line in enumerate(lines)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")


def write_api_statistic(path: Path, device_column: bool, spec: GptSpec, kernels: int) -> None:
    """What the host called. Eager modes launch every kernel, sink launches the graph."""
    launches = kernels if spec.mode != "graph" or not spec.sink else max(1, kernels // 200)
    rows = [("node", "launch", launches, 9.2), ("runtime", "KernelLaunch", launches, 4.1)]
    rows += [
        ("acl", "aclnnMatmulGetWorkspaceSize", launches // 6 + 1, 21.4),
        ("runtime", "StreamSynchronize", 4, 180.0),
    ]
    lines = ["Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance"]
    for level, name, count, mean in rows:
        cells = [level, name, f"{count * mean:.3f}", str(count)]
        lines.append(",".join([*cells, f"{mean:.3f}", f"{mean / 2:.3f}", f"{mean * 3:.3f}", f"{mean / 4:.3f}"]))
    if device_column:
        lines = [f"{'Device_id' if i == 0 else 'host'},{line}" for i, line in enumerate(lines)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")


def write_memory_record(path: Path, columns: int, newline: str, spec: GptSpec, truth: Truth) -> None:
    """Rises through forward, falls through backward, once per step; `columns` is 5 (2023), 6 (MindSpore) or 7."""
    head = {
        5: "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type",
        6: "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Device Type",
        7: "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type",
    }[columns]
    component = "PTA" if spec.mode == "torch" else "MindSpore"
    peak, reserved = truth.peak_allocated_bytes / 2**20, truth.peak_reserved_bytes / 2**20
    lines = [head]
    for step in truth.steps:
        for i in range(MEMORY_SAMPLES):
            time = microseconds(step.start_ns + step.step_ns * i // MEMORY_SAMPLES) + ("\t" if columns > 5 else "")
            level = _sawtooth(i / MEMORY_SAMPLES, peak)
            tail = {5: [], 6: [f"{level}"], 7: [f"{level}", "2"]}[columns]
            lines.append(",".join([component, time, f"{level}", f"{reserved}", *tail, "NPU:0"]))
    lines.append(",".join(["APP", lines[-1].split(",")[1], "", f"{reserved + 1200}", *[""] * (columns - 5), "NPU:0"]))
    path.write_text(newline.join(lines) + newline, encoding="utf-8", newline="")


def _sawtooth(at: float, peak: float) -> float:
    """Share of the peak at that point of a step: the peak is met exactly where forward turns into backward."""
    turn = 0.35
    return peak * (0.45 + 0.55 * (at / turn if at <= turn else (1 - at) / (1 - turn)))
