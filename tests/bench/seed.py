"""Fills an empty, migrated database with the history of a large team: what pages must stay fast on.

10 000 runs in one project and 500 in ten others, 100 000 captures, 800 000 checklist results, 5 000 000 step records,
20 000 alerts. Reports and rank entries of the newest captures are those of synthetic dumps in full size; the rest have
short ones. One capture has 1 000 ranks, one rank 1 000 000 kernels.

`python tests/bench/seed.py` fills the database of DATABASE_URL and the data folder of STEPSCOPE_DATA.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

RUNS, SMALL_PROJECTS, RUNS_OF_SMALL = 10_000, 10, 50
CAPTURES, STEPS = 100_000, 5_000_000
LONG_RUNS, STEPS_OF_LONG = 10, 100_000
FULL_REPORTS, RANKS_OF_LARGE = 200, 1_000
CAPTURES_OF_BUSY = 500
ALERTS, WAIVERS = 20_000, 1_000
NOW = datetime(2026, 11, 1, tzinfo=UTC)
USERNAME, PASSWORD = "lead", "correct horse battery staple"
ITEMS = (
    *("dtype_cast", "graph_sink", "fused_attention", "ffn_parallel", "attention_mask"),
    *("weight_alignment", "warmup_mfu", "precision_regression"),
)
MODELS = ("llama2_7b", "llama3_70b", "qwen3_32b", "deepseek3_671b", "glm4_9b")
VERDICTS = ("compute", "scheduling", "communication", "mixed")
SUMMARY = "Cast takes 11.7 % of compute time; the limit is 5 %. Most of it is in attention of every layer."
WORDS = ("nightly", "ablation", "graph mode", "PyNative", "TP2 trial", "long context", "MoE", "after upgrade")


@dataclass
class Seeded:
    """Ids that a bench asks for."""

    runs: list[int] = field(default_factory=list)
    busy_run: int = 0
    long_runs: list[int] = field(default_factory=list)
    full_captures: list[int] = field(default_factory=list)
    other_captures: list[int] = field(default_factory=list)
    large_capture: int = 0
    project: str = "fleet"


@dataclass
class Sample:
    """The report and the entries of a dump that was written, read and judged as any other."""

    report: dict[str, Any]
    entry: dict[str, Any]
    source: dict[str, Any]


def seed() -> Seeded:
    """Fill the database that Django is set up for; takes a minute or two."""
    from django.db import connection, transaction

    rng = random.Random(7)
    samples = write_samples()
    projects = make_people()
    with transaction.atomic(), connection.cursor() as cursor:
        raw = cursor.cursor  # psycopg's own, for COPY
        done = Seeded()
        copy_runs(raw, projects, rng, done)
        newest = copy_captures(raw, rng, samples, done)
        copy_dumps(raw, rng, samples, done)
        copy_checklist(raw, rng, newest)
        insert_steps(raw, done)
        copy_alerts(raw, rng, projects[0], done)
        for table in ("runs_run", "runs_capture", "runs_dump", "runs_checklistresult", "runs_waiver", "alerts_alert"):
            raw.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table}")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")  # what autovacuum has done by the time a server has such a history
    give_kernels(done)
    return done


# People and samples


def make_people() -> list[int]:
    """A lead who is a member of every project, as most people are, and no superuser; ids of the projects."""
    from dashboard.accounts.models import Member, Project, Role, User

    user = User.objects.create_user(USERNAME, "lead@example.com", PASSWORD)
    names = ["fleet", *(f"team-{number}" for number in range(1, SMALL_PROJECTS + 1))]
    projects = [Project.objects.create(slug=name, name=name.title()) for name in names]
    Member.objects.bulk_create(Member(project=project, user=user, role=Role.OWNER) for project in projects)
    return [project.pk for project in projects]


def write_samples() -> list[Sample]:
    """Two kinds: a 7B model on eight cards, and one rank of a thousand with its many collectives."""
    from analysis.synthetic.spec import cluster, llama2_7b

    return [_sample(llama2_7b(casts=frozenset({"norm", "rotary"}), mask="full", mask_rebuilt=True)), _sample(cluster())]


def _sample(spec: Any) -> Sample:
    from analysis.dump import find_dumps
    from analysis.rank import read_rank
    from analysis.report import capture_report
    from analysis.synthetic import write_rank

    with tempfile.TemporaryDirectory() as folder:
        write_rank(Path(folder) / "host01_1_20260101120000123_ascend_ms", spec, run={"soc": "Ascend910B3"})
        dump = find_dumps(Path(folder))[0]
        result = read_rank(dump)
    report = capture_report([(result.entry, result.source)], config=None, run=dump.run_meta, series=[])
    entry = report.pop("ranks")[0]
    report.pop("series")
    return Sample(report, entry, result.source)


# Rows


def copy(cursor: Any, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as target:
        for row in rows:
            target.write_row(row)


def defaults(model: Any, **values: Any) -> dict[str, Any]:
    """A value for every column of a model's table: those given, else the model's own default."""
    row = {}
    for column in model._meta.local_concrete_fields:
        if column.name == "id":
            continue
        row[column.column] = None if column.null else "" if not column.has_default() else column.get_default()
    return {**row, **values}


def copy_models(cursor: Any, model: Any, rows: Iterator[dict[str, Any]]) -> None:
    """COPY rows that are dicts with the same keys in the same order."""
    first = next(rows)
    copy(cursor, model._meta.db_table, list(first), (_plain(row) for row in chain([first], rows)))


def _plain(row: dict[str, Any]) -> list[Any]:
    return [json.dumps(value) if isinstance(value, dict) else value for value in row.values()]


def ranked(entry: str, rank: int) -> str:
    """A rank's entry from that of another, written out once: a thousand times would take a minute."""
    return f'{{"rank": {rank}, {entry[1:]}'


def measured(rng: random.Random) -> dict[str, Any]:
    """Values of the columns of `Metrics`; each of the utilisations unknown now and then."""
    step, cast = rng.randint(300_000_000, 9_000_000_000), rng.uniform(0.01, 0.14)
    mfu = None if rng.random() < 0.1 else rng.uniform(0.15, 0.5)
    failed = rng.randint(0, 5)
    return {
        "step_time_ns": step,
        "step_time_source": "step_trace_time.csv",
        "mfu": mfu,
        "tflops_per_device": None if mfu is None else mfu * 353.9,
        "peak_tflops": rng.choice((353.9, 294.9)),
        "peak_dtype": "bf16",
        "peak_source": "Ascend910B3",
        "flops_formula": "megatron_causal",
        "device_ratio": rng.uniform(0.6, 0.99),
        "compute_ratio": rng.uniform(0.5, 0.9),
        "exposed_communication_ratio": rng.uniform(0.01, 0.3),
        "cast_ratio": cast,
        "movement_ratio": cast * 1.6,
        "peak_memory_bytes": rng.randint(20, 62) << 30,
        "verdict": rng.choice(VERDICTS),
        "checklist_passed": 7 - failed,
        "checklist_failed": failed,
        "checklist_unknown": 1,
        "recoverable_ns": step // 12,
    }


def config_text() -> str:
    from analysis.synthetic.log import config_text
    from analysis.synthetic.spec import llama2_7b

    return config_text(llama2_7b(), "llama2_7b")


def copy_runs(cursor: Any, projects: Sequence[int], rng: random.Random, done: Seeded) -> None:
    from dashboard.runs.models import Run

    owners = [projects[0]] * RUNS + [pk for pk in projects[1:] for _ in range(RUNS_OF_SMALL)]
    config = config_text()
    meta = {
        "soc": "Ascend910B3", "world_size": 8, "command": "msrun --worker_num=8 run_mindformer.py",
        "environment": {f"HCCL_SETTING_{number}": str(number) for number in range(30)},
    }  # fmt: skip

    def rows() -> Iterator[dict[str, Any]]:
        for number, project in enumerate(owners, 1):
            at = NOW - timedelta(minutes=20 * (len(owners) - number))
            model = rng.choice(MODELS)
            values = {
                "id": number, "project_id": project, "key": f"run-{number}", "created": at, "last_capture_at": at,
                "name": f"{model} {rng.choice(WORDS)} {number}", "framework": "mindspore", "model_name": model,
                "framework_version": rng.choice(("2.6.0", "2.7.1", "2.10.0")), "soc": "Ascend910B3",
                "cann_version": rng.choice(("8.2.RC1", "8.3.RC1", "8.5.0")), "mode": rng.choice(("graph", "pynative")),
                "jit_level": "O1", "sink": True, "world_size": cards(number), "dp": 8, "tp": 1, "pp": 1,
                "meta": meta, "config_name": f"run_{model}.yaml", "config_text": config, "config_fingerprint": model,
                "capture_count": 10, "sparkline": [rng.uniform(900, 1100) for _ in range(60)],
                "spark_metric": "step_time", "tags": [rng.choice(("baseline", "nightly", "wip"))], **measured(rng),
            }  # fmt: skip
            yield defaults(Run, **values)

    copy_models(cursor, Run, rows())
    done.runs = list(range(1, RUNS + 1))
    done.long_runs = done.runs[-LONG_RUNS:]
    done.busy_run = done.runs[-1]


def copy_captures(
    cursor: Any, rng: random.Random, samples: Sequence[Sample], done: Seeded
) -> list[tuple[int, int, bool]]:
    """Captures of all runs, the busy one's among them; each id with its run and whether it is that\'s newest."""
    from dashboard.runs.models import Capture

    items = [{"id": item, "status": "pass", "summary": SUMMARY} for item in ITEMS]
    short = {"schema": 1, "source": {"framework": "mindspore"}, "findings": [], "checklist": {"items": items}}
    everyone = range(1, RUNS + SMALL_PROJECTS * RUNS_OF_SMALL + 1)
    owners = [run for run in everyone for _ in range((CAPTURES - CAPTURES_OF_BUSY) // len(everyone))]
    owners += [done.busy_run] * (CAPTURES - len(owners))
    last = {run: number for number, run in enumerate(owners, 1)}
    full = [last[run] for run in done.runs[-FULL_REPORTS:]]
    done.full_captures, done.large_capture = full, full[-2]
    done.other_captures = rng.sample(range(1, CAPTURES // 2), 100)
    wanted = dict.fromkeys(full)

    def rows() -> Iterator[dict[str, Any]]:
        for number, run in enumerate(owners, 1):
            sample = samples[number == done.large_capture]
            at = NOW - timedelta(minutes=2 * (len(owners) - number))
            values = {
                "id": number, "run_id": run, "key": f"step-{number}", "state": "ready", "created": at,
                "captured_at": at, "first_step": 100 + number % 7 * 50, "last_step": 101 + number % 7 * 50,
                "rank_count": 2, "world_size": 8, "config_fingerprint": rng.choice(MODELS), "rolled_up": at,
                "cann_version": rng.choice(("8.2.RC1", "8.3.RC1")), "framework_version": "2.7.1", **measured(rng),
                "report": sample.report if number in wanted else short,
            }  # fmt: skip
            yield defaults(Capture, **values)

    copy_models(cursor, Capture, rows())
    return [(number, run, last[run] == number) for number, run in enumerate(owners, 1)]


def copy_dumps(cursor: Any, rng: random.Random, samples: Sequence[Sample], done: Seeded) -> None:
    """Two ranks for each capture, eight with full entries for the newest ones, a thousand for the large one."""
    from dashboard.runs.models import Dump

    full = set(done.full_captures)
    step = {"step": "100", "step_time_us": 1e6, "computing_us": 8e5, "communication_not_overlapped_us": 1e5,
            "free_us": 1e5, "warmup": False}  # fmt: skip
    files = [
        {"name": f"ASCEND_PROFILER_OUTPUT/{name}", "size": 1_000_000, "sha256": "0" * 64}
        for name in ("kernel_details.csv", "step_trace_time.csv", "op_statistic.csv", "communication.json")
    ]
    manifest, short = json.dumps(files), json.dumps({"steps": [step]})
    entries = [json.dumps({key: value for key, value in sample.entry.items() if key != "rank"}) for sample in samples]
    sources = [json.dumps(sample.source) for sample in samples]

    def rows() -> Iterator[dict[str, Any]]:
        for capture in range(1, CAPTURES + 1):
            count = RANKS_OF_LARGE if capture == done.large_capture else 8 if capture in full else 2
            kind = int(capture == done.large_capture)
            for rank in range(count):
                at, base = NOW - timedelta(minutes=2 * (CAPTURES - capture)), rng.uniform(0.8, 1.2)
                values = {
                    "capture_id": capture, "rank": rank, "device_id": rank % 8, "host": f"host{rank // 8 + 1:02d}",
                    "framework": "mindspore", "files": manifest, "files_sha256": "0" * 64, "size_bytes": 4_000_000,
                    "state": "digested", "progress": 1.0, "attempts": 1, "created": at, "uploaded_at": at,
                    "digested_at": at, "heartbeat": at, "source": sources[kind] if capture in full else {},
                    "entry": ranked(entries[kind] if capture in full else short, rank),
                    "step_time_ns": int(1e9 * base), "computing_ns": int(8e8 * base), "free_ns": int(1e8 * base),
                    "communication_not_overlapped_ns": int(1e8 * base), "device_ratio": 0.9, "cast_ratio": 0.05 * base,
                }  # fmt: skip
                row = defaults(Dump, **values)
                yield {**row, "files": manifest}

    copy_models(cursor, Dump, rows())


def copy_checklist(cursor: Any, rng: random.Random, captures: Sequence[tuple[int, int, bool]]) -> None:
    from dashboard.runs.models import ChecklistResult

    def rows() -> Iterator[dict[str, Any]]:
        for capture, run, newest in captures:
            for item in ITEMS:
                status = rng.choice(("pass", "pass", "fail", "unknown"))
                won = rng.randint(1_000_000, 400_000_000) if status == "fail" else None
                values = {
                    "capture_id": capture, "run_id": run, "item": item, "status": status, "value": 0.117,
                    "threshold": 0.05, "summary": SUMMARY, "summary_zh": SUMMARY, "recoverable_ns": won,
                    "latest": newest, "lost_ns": won * cards(run) * 1000.0 if won and newest else None,
                }  # fmt: skip
                yield defaults(ChecklistResult, **values)

    copy_models(cursor, ChecklistResult, rows())


def cards(run: int) -> int:
    return (8, 16, 64, 256)[run % 4]


STEP_ROWS = """
    INSERT INTO runs_steprecord (run_id, step, loss, lr, global_norm, step_time_ns, tflops_per_device, source)
    SELECT run, step, 10 / ln(step + 2), 1e-4, 1 + random(), 1000000000 + random() * 1e7, 120, 'log'
    FROM unnest(%s::int[]) AS run, generate_series(1, %s) AS step
"""


def insert_steps(cursor: Any, done: Seeded) -> None:
    """Ten runs with 100 000 steps, the others with an equal share; made where they are stored."""
    cursor.execute(STEP_ROWS, (done.long_runs, STEPS_OF_LONG))
    others = done.runs[:-LONG_RUNS]
    cursor.execute(STEP_ROWS, (others, -(-(STEPS - LONG_RUNS * STEPS_OF_LONG) // len(others))))
    cursor.execute(import_module("dashboard.runs.migrations.0018_fill_step_sums").FILL)


def copy_alerts(cursor: Any, rng: random.Random, project: int, done: Seeded) -> None:
    states = ("open", "acknowledged", "false_alarm", "expected", "expected")

    def rows() -> Iterator[Sequence[Any]]:
        for number in range(1, ALERTS + 1):
            capture = CAPTURES - CAPTURES_OF_BUSY - 5000 - number
            at = NOW - timedelta(minutes=number)
            yield (
                project,
                capture,
                capture - 1,
                "cast_ratio",
                0.03,
                0.074,
                0.044,
                SUMMARY,
                SUMMARY,
                rng.choice(states),
                "",
                at,
                "points",
                "{}",
            )

    columns = ("project_id", "capture_id", "previous_id", "metric", "old_value", "new_value", "change", "cause",
               "cause_zh", "state", "note", "created", "confirmation", "evidence")  # fmt: skip
    copy(cursor, "alerts_alert", columns, rows())
    cursor.execute(
        "INSERT INTO runs_waiver (run_id, item, owner_id, reason, expires, created, every_run)"
        " SELECT run, 'dtype_cast', (SELECT min(id) FROM accounts_user), 'known', current_date + 30, now(), false"
        " FROM unnest(%s::int[]) AS run",
        (done.runs[:WAIVERS],),
    )


# Kernels


def give_kernels(done: Seeded) -> None:
    """Parquet files of a real size for the newest captures (4 000 kernels) and one rank with a million."""
    import polars as pl

    from analysis.cli import keep_indexes
    from analysis.dump import find_dumps
    from analysis.rank import read_rank
    from analysis.store import write_frames
    from analysis.synthetic import write_rank
    from analysis.synthetic.spec import llama2_7b
    from dashboard.ingest import storage
    from dashboard.runs.models import Dump

    with tempfile.TemporaryDirectory() as folder:
        write_rank(Path(folder) / "host01_1_20260101120000123_ascend_ms", llama2_7b(), run={"soc": "Ascend910B3"})
        frames = read_rank(find_dumps(Path(folder))[0]).frames
    kernels = frames["kernels"]
    times = 1_000_000 // kernels.height + 1
    many = pl.concat([kernels.with_columns(pl.col("start_ns") + round(number * 2e9)) for number in range(times)]).head(
        1_000_000
    )
    for capture in done.full_captures:
        dump = Dump.objects.get(capture=capture, rank=0)
        name = storage.new_frames_name(dump.pk)
        target = storage.frames_path(name)
        target.mkdir(parents=True)
        kept = {**frames, "kernels": many} if capture == done.full_captures[-1] else frames
        write_frames(target, kept)
        keep_indexes(target, kept)
        Dump.objects.filter(pk=dump.pk).update(frames=name)


def main() -> None:
    import os
    import time

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    before = time.perf_counter()
    done = seed()
    print(json.dumps(done.__dict__), f"{time.perf_counter() - before:.0f} s")


if __name__ == "__main__":
    main()
