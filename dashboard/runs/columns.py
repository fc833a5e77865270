"""What a run list shows: its columns, and the part of its address that makes up a view."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from dashboard.runs.metrics import METRICS, TERMS, Text
from dashboard.runs.queries import RUN_FILTERS, RUN_ORDERS


@dataclass(frozen=True)
class Column:
    """A column of the run list; `field` is the run's value it shows, `order` how the address sorts by it."""

    key: str
    label: Text
    field: str = ""
    order: str = ""

    @property
    def kind(self) -> str:
        """Unit of the value: "duration", "percent", "bytes" or "number"; empty for one that is not a number."""
        metric = METRICS.get(self.field)
        return metric.kind if metric else ""

    @property
    def about(self) -> str:
        """Under which key its meaning is told; empty for what needs no telling."""
        return next((key for key in (self.field, self.key) if key in METRICS or key in TERMS), "")


def _metric(key: str, field: str) -> Column:
    return Column(key, METRICS[field].label, field, key if key in RUN_ORDERS else "")


COLUMNS = {
    column.key: column
    for column in (
        Column("setup", _("Setup")),
        Column("verdict", _("Verdict")),
        _metric("step_time", "step_time_ns"),
        _metric("mfu", "mfu"),
        _metric("hfu", "hfu"),
        _metric("tflops", "tflops_per_device"),
        _metric("device_ratio", "device_ratio"),
        _metric("compute", "compute_ratio"),
        _metric("exposed", "exposed_communication_ratio"),
        _metric("cast", "cast_ratio"),
        _metric("movement", "movement_ratio"),
        _metric("memory", "peak_memory_bytes"),
        _metric("recoverable", "recoverable_ns"),
        Column("captures", _("Captures"), "capture_count", "captures"),
        Column("checklist", _("Checklist"), "", "failed"),
        Column("trend", _("Trend")),
    )
}
USUAL = ("setup", "step_time", "mfu", "device_ratio", "cast", "memory", "checklist", "trend")
KEPT = (*RUN_FILTERS, "q", "tag", "fails", "archived", "order")


def chosen(params: QueryDict) -> list[Column]:
    """The columns that the address asks for, in our order; the usual ones where it names none that we have."""
    wanted = {key for text in params.getlist("columns") for key in text.split(",")} & set(COLUMNS)
    return [column for key, column in COLUMNS.items() if key in (wanted or USUAL)]


def view_query(params: QueryDict) -> str:
    """Filters, order and columns of an address in one fixed form, so that equal views are equal text."""
    pairs = [(key, text.strip()) for key in KEPT if (text := params.get(key, ""))]
    keys = [column.key for column in chosen(params)]
    if keys != list(USUAL):
        pairs.append(("columns", ",".join(keys)))
    return urlencode([pair for pair in pairs if pair[1]], safe=",")
