"""Ready-made comparisons, for pages that offer them."""

from __future__ import annotations

from typing import Any

from django import template

from dashboard.accounts.models import Project
from dashboard.runs import pairs

register = template.Library()


@register.inclusion_tag("runs/_pairs.html")
def project_pairs(project: Project) -> dict[str, Any]:
    return {"pairs": pairs.project_pairs(project.pk)}
