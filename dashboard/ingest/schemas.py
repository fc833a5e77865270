"""The JSON bodies of the API. Text is checked once, by `bodies.check_body`: no NUL, no half surrogate, no NaN."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dashboard.accounts.models import KEY_PATTERN

MAX_INT = 2_147_483_647
MAX_RANK = 1_000_000
MAX_STEPS = 5_000
Key = Annotated[str, Field(pattern=KEY_PATTERN.replace(r"\Z", "$"), max_length=100)]
Count = Annotated[int, Field(ge=1, le=MAX_INT)]
YEARS = (1970, 2200)
StepNumber = Annotated[int, Field(ge=0, le=2**53)]


def _in_our_time(moment: datetime) -> datetime:
    # A year at the end of the calendar leaves it in another time zone, and then no page can show it.
    # Nor does PostgreSQL know each time zone that Python reads: it is given UTC.
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise ValueError(f"lies outside the years {YEARS[0]} to {YEARS[1]}")
    return moment.astimezone(UTC) if moment.tzinfo else moment


class Body(Schema):
    """Numbers are numbers and text is text: no guessing of one from the other."""

    model_config = ConfigDict(strict=True, extra="ignore")


class ParallelIn(BaseModel):  # not a Schema, which drops the keys it does not know whatever `extra` says
    model_config = ConfigDict(strict=True, extra="allow")
    dp: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None


class MetaIn(BaseModel):
    """What the agent knows of a run. Further keys are kept as they come."""

    model_config = ConfigDict(strict=True, extra="allow")
    framework: str | None = None
    framework_version: str | None = None
    cann_version: str | None = None
    soc: str | None = None
    mode: str | None = None
    jit_level: str | None = None
    sink: bool | None = None
    world_size: Count | None = None
    parallel: ParallelIn | None = None


class ConfigIn(Body):
    name: str = Field("config.yaml", min_length=1, max_length=200)
    text: str


class RunIn(Body):
    key: Key
    name: str | None = Field(None, max_length=200)
    meta: MetaIn | None = None
    config: ConfigIn | None = None


class ReferenceIn(Body):
    replace: bool = False


class WindowIn(Body):
    first_step: StepNumber | None = None
    last_step: StepNumber | None = None

    @model_validator(mode="after")
    def _in_order(self) -> WindowIn:
        if self.first_step is not None and self.last_step is not None and self.last_step < self.first_step:
            raise ValueError(f"last_step {self.last_step} lies before first_step {self.first_step}")
        return self


class FileIn(Body):
    name: str
    size: int
    sha256: str


class DumpIn(Body):
    capture: Key
    rank: int = Field(ge=0, le=MAX_RANK)
    world_size: Count | None = None
    device_id: int | None = Field(None, ge=0, le=MAX_INT)
    host: str | None = Field(None, max_length=200)
    framework: str | None = Field(None, max_length=20)
    folder: str | None = Field(None, max_length=300)
    window: WindowIn | None = None
    captured_at: Annotated[datetime, Field(strict=False), AfterValidator(_in_our_time)] | None = None
    replace: bool = False
    files: list[FileIn]


class StepIn(Body):
    step: StepNumber
    loss: float | None = None
    lr: float | None = None
    global_norm: float | None = None
    step_time_ms: float | None = Field(None, ge=0, le=1e11)
    tflops_per_device: float | None = None
    loss_scale: float | None = None
    overflow: bool | None = None


class StepsIn(Body):
    source: Literal["log", "callback"] = "log"
    steps: list[StepIn] = Field(max_length=MAX_STEPS)


class ArchiveFileIn(Body):
    name: str = Field(min_length=1, max_length=300)
    size: int = Field(ge=0)


class ArchiveIn(Body):
    """`files`: one archive, or the files of a folder with their paths in it."""

    run: Key
    run_name: str | None = Field(None, max_length=200)
    capture: Key | None = None
    config: ConfigIn | None = None
    files: list[ArchiveFileIn] = Field(min_length=1)


class RunOut(Schema):
    id: int
    key: str
    name: str
    url: str


class RunAnswer(Schema):
    run: RunOut


class CaptureRef(Schema):
    id: int
    key: str
    state: str
    url: str


class DumpOut(Schema):
    id: int
    state: str
    rank: int
    progress: float
    error: str | None
    attempts: int
    capture: CaptureRef


class DumpAnswer(Schema):
    dump: DumpOut


class AnnounceAnswer(Schema):
    dump: DumpOut
    missing: list[dict[str, Any]]


class StoredAnswer(Schema):
    stored: int


class ArchiveOut(Schema):
    id: int
    state: str
    error: str | None
    warnings: list[str]
    captures: list[dict[str, Any]]
    files: list[dict[str, Any]]


class ArchiveAnswer(Schema):
    archive: ArchiveOut


class ErrorOut(Schema):
    code: str
    message: str


class ErrorAnswer(Schema):
    error: ErrorOut
