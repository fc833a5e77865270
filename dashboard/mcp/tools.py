"""What an assistant may ask: read-only, within the token's project, answers short enough to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from django.db.models import Q
from ninja import Schema
from pydantic import ConfigDict, Field

from dashboard.accounts.models import Project
from dashboard.alerts import gate
from dashboard.ingest.api_read import capture_row, ordered, run_row
from dashboard.ingest.auth import Caller, find_capture, find_project, find_run
from dashboard.ingest.errors import ApiError
from dashboard.runs import compare_rows, queries, rank_pairs, violation_rows
from dashboard.runs.models import Capture, CaptureState

Json = dict[str, Any]
Id = Annotated[int, Field(ge=1, le=2**31 - 1)]
Text = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
LONGEST_LIST = 30
SECTIONS = (
    *("steps", "op_types", "layers", "communication", "collectives", "links", "memory", "flops", "free_time"),
    *("data_pipeline", "bottleneck", "kernels", "schedule"),
)


class Arguments(Schema):
    model_config = ConfigDict(extra="forbid")


class ListRuns(Arguments):
    project: Text = Field("", description="a project's short name; empty: every project the token reaches")
    search: Text = Field("", description="part of a run's name or key")
    order: Text = Field("-last_capture_at", description="a metric, '-' before it for largest first")


class GetRun(Arguments):
    run: Id = Field(description="id from list_runs")


class GetCapture(Arguments):
    capture: Id = Field(description="id from get_run")


class GetSection(Arguments):
    capture: Id
    rank: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    section: Literal[SECTIONS] = Field(description="which part of that rank's analysis")  # type: ignore[valid-type]


class Compare(Arguments):
    captures: Annotated[list[Id], Field(min_length=2, max_length=8)] = Field(
        description="ids; the others are held against the first"
    )


class CompareRanks(Arguments):
    capture: Id
    ranks: Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=8)] = Field(
        default=[],
        description="the others are held against the first; one alone against a typical rank; empty: the slow one",
    )


class Gate(Arguments):
    capture: Id
    against: Text = Field("", description="key of the run to compare with; empty: the captures before it")


class ListViolations(Arguments):
    project: Text = Field(description="a project's short name")


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    arguments: type[Arguments]
    run: Callable[[Caller, Any], Json]

    def described(self) -> Json:
        """As tools/list gives it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.arguments.model_json_schema(),
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }


def _list_runs(caller: Caller, asked: ListRuns) -> Json:
    runs = caller.runs().defer("meta", "config_text")
    if asked.project:
        runs = runs.filter(project=find_project(caller, asked.project))
    if asked.search:
        runs = runs.filter(Q(name__icontains=asked.search) | Q(key__icontains=asked.search))
    found = list(ordered(runs, asked.order)[: LONGEST_LIST + 1])
    return {"runs": [run_row(run) for run in found[:LONGEST_LIST]], "more": len(found) > LONGEST_LIST}


def _get_run(caller: Caller, asked: GetRun) -> Json:
    run = find_run(caller, asked.run)
    captures = Capture.objects.filter(run=run).defer("report").order_by("-captured_at", "-id")[:LONGEST_LIST]
    return {**run_row(run), "meta": run.meta, "captures": [capture_row(one) for one in captures]}


def _get_capture(caller: Caller, asked: GetCapture) -> Json:
    capture = _ready(caller, asked.capture)
    report = capture.report
    return {
        **capture_row(capture),
        "bottleneck": report.get("bottleneck"),
        "fix_first": _english(report.get("fix_first")),
        "checklist": _english(
            [_without(item, "evidence") for item in (report.get("checklist") or {}).get("items", [])]
        ),
        "findings": _english(report.get("findings")),
        "cluster": report.get("cluster"),
        "ranks": [dump.rank for dump in queries.capture_ranks(capture)[: LONGEST_LIST * 10]],
    }


def _get_section(caller: Caller, asked: GetSection) -> Json:
    capture = _ready(caller, asked.capture)
    entry = queries.entry_of(capture, asked.rank)
    if not entry:
        raise ApiError(404, "not_found", f"the capture has no rank {asked.rank}")
    return {"rank": asked.rank, asked.section: _english(entry.get(asked.section))}


def _compare(caller: Caller, asked: Compare) -> Json:
    captures = [_ready(caller, number) for number in asked.captures]
    found = compare_rows.differences(captures, compare_rows.entries(captures))
    return {"captures": [capture_row(one) for one in captures], **_english(found)}


def _compare_ranks(caller: Caller, asked: CompareRanks) -> Json:
    capture = _ready(caller, asked.capture)
    dumps = rank_pairs.chosen(capture, asked.ranks, queries.capture_ranks(capture))
    if len(dumps) < 2:
        raise ApiError(404, "not_found", "the capture has not two of these ranks to compare")
    found = rank_pairs.differences(rank_pairs.entries(dumps))
    kept = ("metrics", "step_time", "blocks", "op_types", "op_shapes", "communication")
    return {"ranks": [dump.rank for dump in dumps], **_english({key: found[key] for key in kept})}


def _gate(caller: Caller, asked: Gate) -> Json:
    capture = _ready(caller, asked.capture)
    verdicts = gate.judge_build(capture, gate.baseline_of(capture, asked.against))
    return {"verdict": gate.overall(verdicts), "rules": [verdict.as_json() for verdict in verdicts]}


def _list_violations(caller: Caller, asked: ListViolations) -> Json:
    project = find_project(caller, asked.project)
    found = violation_rows.open_only(violation_rows.in_projects(Project.objects.filter(pk=project.pk)))
    rows = [
        {
            "item": one.item,
            "summary": one.summary,
            "value": one.value,
            "run": {"id": one.run_id, "key": one.run.key, "name": one.run.name},
            "capture": one.capture_id,
            "lost_npu_hours": None if one.lost_ns is None else one.lost_ns / 3.6e12,
        }
        for one in found[: LONGEST_LIST + 1]
    ]
    return {"violations": rows[:LONGEST_LIST], "more": len(rows) > LONGEST_LIST}


def _ready(caller: Caller, number: int) -> Capture:
    capture = find_capture(caller, number)
    if capture.state != CaptureState.READY:
        raise ApiError(409, "incomplete", f"capture {number} is {capture.state}: it has no analysis yet")
    return capture


def _english(value: Any) -> Any:
    """Without the Chinese twins of texts, and lists no longer than people read."""
    if isinstance(value, Mapping):
        return {key: _english(part) for key, part in value.items() if not str(key).endswith("_zh")}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_english(part) for part in value[:LONGEST_LIST]]
    return value


def _without(item: Mapping[str, Any], *keys: str) -> Json:
    return {key: value for key, value in item.items() if key not in keys}


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("list_runs", "Training runs with their newest metrics, 30 at most.", ListRuns, _list_runs),
        Tool("get_run", "One run: identity, versions, parallel split, newest captures.", GetRun, _get_run),
        Tool(
            "get_capture",
            "One profiled window: what binds the step, what to fix first, the checklist, findings, slow ranks.",
            GetCapture,
            _get_capture,
        ),
        Tool(
            "get_section",
            "Details of one rank: steps, operators, layers, communication, memory, passes of its pipeline stage.",
            GetSection,
            _get_section,
        ),
        Tool(
            "compare",
            "What changed between captures, and what each operator, layer and collective adds to it.",
            Compare,
            _compare,
        ),
        Tool(
            "compare_ranks",
            "Why one rank of a capture is slower than another: parts of the step, blocks, operators at equal shapes.",
            CompareRanks,
            _compare_ranks,
        ),
        Tool("gate", "Whether a capture is worse than its baseline by the project's alert rules.", Gate, _gate),
        Tool(
            "list_violations",
            "Open checklist failures of a project, the dearest first.",
            ListViolations,
            _list_violations,
        ),
    )
}
