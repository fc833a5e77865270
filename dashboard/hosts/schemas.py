"""The JSON bodies of the agent's calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import Field

from dashboard.ingest.schemas import Body, Key, StepNumber

MOST_NPUS = 64
MOST_RUNS = 500
SpoolState = Annotated[str, Field(max_length=20)]


class NpuIn(Body):
    """One NPU of the host, as `npu-smi info` shows it. `id` is the device id that dumps name."""

    id: int = Field(ge=0, le=10_000)
    chip: str | None = Field(None, max_length=40)
    serial: str | None = Field(None, max_length=60)
    health: str | None = Field(None, max_length=20)


class RunInHand(Body):
    key: Key
    step: StepNumber | None = None
    via: Literal["callback", "dynamic"] | None = None


class HeartbeatIn(Body):
    agent: Key
    host: str = Field(min_length=1, max_length=200)
    version: str | None = Field(None, max_length=40)
    driver: str | None = Field(None, max_length=60)
    npus: list[NpuIn] = Field(default=[], max_length=MOST_NPUS)
    spool: dict[SpoolState, int] = Field(default={}, max_length=20)
    trouble: str | None = Field(None, max_length=2_000)
    runs: list[RunInHand] = Field(default=[], max_length=MOST_RUNS)


class RequestOut(Schema):
    id: int
    run_key: str
    kind: str
    first_step: int | None
    steps: int
    ranks: Any
    level: str
    state: str
    lead_s: int


class HeartbeatAnswer(Schema):
    every_s: int
    requests: list[RequestOut]


class ReportIn(Body):
    agent: Key | None = None
    state: Literal["accepted", "collecting", "uploaded", "failed"]
    reason: str = Field("", max_length=2_000)
    first_step: StepNumber | None = None


class RequestAnswer(Schema):
    request: RequestOut
