"""What all pages share: the frame they render in and how charts are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from dashboard.accounts.models import Project
from dashboard.runs.charts import Spec


def page(
    request: HttpRequest, template: str, context: Mapping[str, Any], project: Project | None = None
) -> HttpResponse:
    """The page, with `project` as the one that the frame's menus belong to."""
    request.shell_project = project  # type: ignore[attr-defined]
    return render(request, template, {**context, "project": project} if project else dict(context))


def say_errors(request: HttpRequest, form: BaseForm) -> None:
    """What is wrong with a form, as one message on the next page."""
    messages.error(request, " ".join(str(error) for errors in form.errors.values() for error in errors))


def chart_response(spec: Spec) -> JsonResponse:
    """Options travel as JSON alone: pyecharts does not escape what a page would have to."""
    response = JsonResponse(spec, json_dumps_params={"ensure_ascii": False, "separators": (",", ":")})
    response["Cache-Control"] = "private, max-age=30"
    response["Vary"] = "Cookie, Accept-Language"
    return response


def number_list(text: str, most: int = 8) -> list[int]:
    """Ids of a comma-separated list, in order, at most `most`; what is no id is left out."""
    parts = [part.strip() for part in text.split(",")]
    ids = [int(part) for part in parts if part.isdecimal() and len(part) < 19]
    return list(dict.fromkeys(ids))[:most]
