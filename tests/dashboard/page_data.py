"""A small project with everything that pages show: numbers are round so that tests can be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from analysis.store import write_frames
from dashboard.accounts.models import Project, User
from dashboard.runs.frames import frames_path
from dashboard.runs.models import (
    METRIC_FIELDS,
    Capture,
    CaptureState,
    ChecklistResult,
    Dump,
    DumpState,
    Run,
    StepRecord,
)
from tests.factories import make_capture, make_dump, make_project, make_run

START = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)


def step(step_time: float, computing: float, exposed: float, free: float, **more: Any) -> dict[str, Any]:
    """One step of an entry, in us."""
    return {
        "step": "10",
        "step_time_us": step_time,
        "computing_us": computing,
        "communication_not_overlapped_us": exposed,
        "free_us": free,
        "bubble_us": 0.0,
        "warmup": False,
        "source": "step_trace_time.csv",
        **more,
    }


def block(name: str, us: float) -> dict[str, Any]:
    return {"block": name, "total_us": us, "kernel_count": 1}


def part(layer: int, name: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    total = sum(row["total_us"] for row in blocks)
    return {"part": "layer", "layer": layer, "pass": name, "micro_batch": 0, "total_us": total, "blocks": list(blocks)}


def entry(cast_us: float = 60.0) -> dict[str, Any]:
    """A step of 1 000 us: 600 computing, 100 exposed communication, 300 free; two layers."""
    return {
        "rank": 0,
        "steps": [step(1000.0, 600.0, 100.0, 300.0)],
        "op_types": [
            {"type": "MatMul", "core": "AI_CORE", "count": 4, "total_us": 400.0, "share": 400 / 600},
            {"type": "Cast", "core": "AI_VECTOR_CORE", "count": 3, "total_us": cast_us, "share": cast_us / 600},
            {"type": "hcom_allReduce_", "core": "HCCL", "count": 1, "total_us": 100.0, "share": None},
        ],
        "layers": {
            "method": "structure",
            "layer_count": 2,
            "micro_batches": 1,
            "attributed_ratio": 0.97,
            "parts": [
                part(0, "forward", block("qkv", 40.0), block("attention_core", 60.0)),
                part(0, "backward", block("qkv", 80.0), block("attention_core", 120.0)),
                part(1, "forward", block("qkv", 40.0), block("attention_core", 90.0)),
                {"part": "optimizer", "layer": None, "pass": "none", "total_us": 50.0, "blocks": []},
            ],
        },
        "flops": {"measured_flops": 3e10, "peak_tflops": 100.0},
        "communication": [],
        "memory": {"peak_reserved_bytes": 2**30},
        "bottleneck": {"verdict": "scheduling", "losses": [{"kind": "free", "us": 300.0, "share": 0.3}]},
        "facts": {"op_shapes": [{"type": "MatMul", "count": 4, "total_us": 400.0, "input_shapes": "8,8;8,8"}]},
    }


def item(key: str, status: str, **more: Any) -> dict[str, Any]:
    blank: dict[str, Any] = {
        "value": None,
        "threshold": None,
        "evidence": [],
        "recoverable_us": None,
        "advice": "Do it.",
    }
    texts = {"summary": f"{key} is {status}.", "summary_zh": f"{key}：{status}。", "advice_zh": "请这样做。"}
    return {"id": key, "status": status, **blank, **texts, **more}


def report() -> dict[str, Any]:
    items = [
        item(
            "dtype_cast", "fail", value=0.1, threshold=0.05, recoverable_us=30.0, evidence=[{"kind": "rank", "rank": 0}]
        ),
        item("graph_sink", "fail", value=0.7, threshold=0.85, recoverable_us=200.0),
        item("fused_attention", "pass", value=1.0, threshold=1.0),
        item("weight_alignment", "unknown"),
    ]
    return {
        "schema": 1,
        "source": {
            "missing": [{"file": "communication.json", "hides": ["links"], "how": "profiler_level=Level1"}],
            "warnings": ["one row was cut"],
        },
        "checklist": {"passed": 1, "failed": 2, "unknown": 1, "score": 1 / 3, "items": items},
        "bottleneck": {"verdict": "scheduling", "losses": [{"kind": "free", "us": 300.0, "share": 0.3}], "rank": 0},
        "findings": [],
        "cluster": {"slow_ranks": [], "slow_links": [], "bubble": {}},
        "fix_first": fix_first(),
    }


def fix_first() -> dict[str, Any]:
    """230 us of a step of 1 000 us: the two failed items save different time."""
    blank = {"source": "checklist", "summary": "", "summary_zh": ""}
    sink = {"id": "graph_sink", "recoverable_us": 200.0, "combined_us": 200.0, "combined_step_time_us": 800.0}
    cast = {"id": "dtype_cast", "recoverable_us": 30.0, "combined_us": 230.0, "combined_step_time_us": 770.0}
    after = {"mfu_after": 0.3, "combined_mfu_after": 0.32}
    return {
        "step_time_us": 1000.0,
        "mfu": 0.25,
        "items": [{**blank, **sink, **after}, {**blank, **cast, **after}],
        "recoverable_us": 230.0,
        "mfu_after": 0.32,
    }


def metrics(**more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "step_time_ns": 1_000_000,
        "mfu": 0.25,
        "peak_tflops": 100.0,
        "peak_dtype": "BF16",
        "peak_source": "table",
        "flops_formula": "megatron_causal",
        "device_ratio": 0.7,
        "cast_ratio": 0.1,
        "peak_memory_bytes": 2**30,
        "verdict": "scheduling",
        "checklist_passed": 1,
        "checklist_failed": 2,
        "checklist_unknown": 1,
        "recoverable_ns": 200_000,
    }
    return {**values, **more}


def ready_capture(run: Run, day: int = 0, ranks: int = 1, latest: bool = True, **more: Any) -> Capture:
    """A ready capture with its ranks and checklist rows; `latest` copies its numbers to the run as roll-up does."""
    values = metrics(**{key: value for key, value in more.items() if key in METRIC_FIELDS})
    rest = {key: value for key, value in more.items() if key not in METRIC_FIELDS}
    capture = make_capture(
        run, state=CaptureState.READY, captured_at=START + timedelta(days=day), rank_count=ranks, report=report(),
        world_size=run.world_size, **values, **rest,
    )  # fmt: skip
    for rank in range(ranks):
        make_dump(
            capture, rank=rank, state=DumpState.DIGESTED, entry=entry(), step_time_ns=1_000_000, computing_ns=600_000,
            communication_not_overlapped_ns=100_000, free_ns=300_000, device_ratio=0.7, cast_ratio=0.1,
        )  # fmt: skip
    for row in report()["checklist"]["items"]:
        won = row["recoverable_us"]
        ChecklistResult.objects.create(
            capture=capture, run=run, item=row["id"], status=row["status"], value=row["value"],
            threshold=row["threshold"], summary=row["summary"], summary_zh=row["summary_zh"], latest=latest,
            recoverable_ns=None if won is None else int(won * 1000),
            lost_ns=None if won is None else int(won * 1000) * (run.world_size or 1) * 1000,
        )  # fmt: skip
    if latest:
        Run.objects.filter(pk=run.pk).update(**values, last_capture_at=capture.captured_at, capture_count=1)
    return capture


def capture_of(told: dict[str, Any], project: Project) -> Capture:
    """A ready capture of that report, as analysis made it."""
    parallel, world = told["source"]["parallel"], told["source"]["world_size"]
    capture = ready_capture(make_run(project, name="As analysed", world_size=world, **parallel), ranks=0)
    capture.report = {key: value for key, value in told.items() if key != "ranks"}
    capture.rank_count = len(told["ranks"])
    capture.save()
    for one in told["ranks"]:
        (first, *_) = one["steps"]
        times = {f"{name}_ns": int(first[f"{name}_us"] * 1000) for name in ("step_time", "computing", "free")}
        make_dump(capture, rank=one["rank"], state=DumpState.DIGESTED, entry=one, **times)
    return capture


def filled_project(owner: User, slug: str = "llm") -> tuple[Project, list[Capture]]:
    """Three runs with a ready capture each, eight cards; the first has step records."""
    project = make_project(slug, owner=owner, name="Language models")
    captures = []
    for index, mode in enumerate(("pynative", "graph", "graph")):
        run = make_run(
            project, name=f"Llama {mode} {index}", mode=mode, soc="Ascend910B3", world_size=8, model_name="llama2_7b",
            framework="mindspore", cann_version="8.2" if index < 2 else "8.3", config_name="run.yaml",
            config_text=f"mode: {mode}\nseed: 0", meta={"environment": {"HCCL_ALGO": f"ring{index}"}},
        )  # fmt: skip
        captures.append(
            ready_capture(run, day=index, ranks=2, mfu=0.2 + index / 10, step_time_ns=1_000_000 - index * 100_000,
                          cann_version=run.cann_version, first_step=10, last_step=11)
        )  # fmt: skip
    StepRecord.objects.bulk_create(
        StepRecord(run=captures[0].run, step=number, loss=10 - number / 100, step_time_ns=1_000_000)
        for number in range(1, 101)
    )
    return project, captures


# name, type, shapes, step, us, FLOPs, matrix unit busy
KERNELS = (
    ("mm_a", "MatMulV3", "2,4;4,8", "2", 30.0, 6_000_000_000, 0.9),
    ("mm_b", "MatMulV3", "2,4;4,8", "2", 10.0, 2_000_000_000, 0.5),
    ("mm_b", "MatMulV3", "4,4;4,4", "2", 20.0, None, None),
    ("add", "Add", "8,8;8,8", "2", 20.0, None, None),
    ("reduce", "hcom_allReduce_", None, "2", 90.0, None, None),
    ("mm_a", "MatMulV3", "2,4;4,8", "1", 5000.0, 6_000_000_000, 0.9),
)


def write_kernels(dump: Dump) -> None:
    """The kernels above as the Parquet file of a dump."""
    columns = list(zip(*KERNELS, strict=True))
    names, types, shapes, steps, times, flops, busy = columns
    frame = pl.DataFrame(
        {
            "name": names, "type": types, "input_shapes": shapes, "step": steps, "flops": flops, "aic_mac_ratio": busy,
            "start_ns": range(len(KERNELS)), "duration_ns": [int(time * 1000) for time in times],
            "kind": ["communication" if name.startswith("hcom") else "compute" for name in types],
            "core": ["AI_CORE"] * len(KERNELS),
        }
    )  # fmt: skip
    dump.frames = f"{dump.pk}-0123456789ab"
    dump.save(update_fields=["frames"])
    write_frames(frames_path(dump.frames), {"kernels": frame})
