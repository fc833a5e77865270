"""Ready-made comparisons, for pages that offer them."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard.accounts.models import Project
from dashboard.runs import pairs
from dashboard.runs.before import run_before, value_before
from dashboard.runs.compare_rows import held_against
from dashboard.runs.metrics import METRICS
from dashboard.runs.models import Run

register = template.Library()


@register.inclusion_tag("runs/_pairs.html")
def project_pairs(project: Project) -> dict[str, Any]:
    return {"pairs": pairs.project_pairs(project.pk)}


register.filter("before", run_before)
TONES = {True: "good", False: "bad", None: "muted"}


@register.simple_tag
def change_since(run: Run, before: Run | None, field: str) -> SafeString | str:
    """How a metric changed since the run before, coloured by whether that is good; empty where it did not."""
    if before is None:
        return ""
    metric = METRICS[field]
    cell = held_against(getattr(run, field), value_before(run, before, field), metric.kind, metric.better)
    if not any(digit in (cell["change"] or "") for digit in "123456789"):
        return ""
    title = _("since %(name)s, the run before of the same model and cards") % {"name": before.name}
    return format_html('<span class="change {}" title="{}">{}</span>', TONES[cell["good"]], title, cell["change"])
