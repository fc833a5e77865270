"""What a project wants to be told of: its rules, and who changed them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import get_owned_project_or_404, get_project_or_404, role_in, signed_in
from dashboard.accounts.models import Project, Role
from dashboard.alerts import rules as numbers
from dashboard.alerts import wording
from dashboard.alerts.forms import RuleForm
from dashboard.alerts.models import ProjectRule, RuleChange, rules_of

HISTORY_LENGTH = 50


@login_required
@require_GET
def rules(request: HttpRequest, slug: str) -> HttpResponse:
    return _page(request, get_project_or_404(request.user, slug))


@login_required
@require_POST
def rule_edit(request: HttpRequest, slug: str, metric: str) -> HttpResponse:
    project = get_owned_project_or_404(request.user, slug)
    default = _default_or_404(metric)
    form = RuleForm(rules_of(project.pk)[metric], request.POST, prefix=metric)
    if not form.is_valid():
        return _page(request, project, form)
    if form.is_default(default):
        return _back_to_default(request, project, metric)
    with transaction.atomic():
        before = _settings_of(project, metric)
        ProjectRule.objects.update_or_create(project=project, metric=metric, defaults=form.wanted())
        _note(request, project, metric, before)
    return _saved(request, project, metric)


@login_required
@require_POST
def rule_reset(request: HttpRequest, slug: str, metric: str) -> HttpResponse:
    project = get_owned_project_or_404(request.user, slug)
    _default_or_404(metric)
    return _back_to_default(request, project, metric)


def _back_to_default(request: HttpRequest, project: Project, metric: str) -> HttpResponse:
    with transaction.atomic():
        before = _settings_of(project, metric)
        ProjectRule.objects.filter(project=project, metric=metric).delete()
        _note(request, project, metric, before)
    return _saved(request, project, metric)


def _default_or_404(metric: str) -> numbers.Rule:
    if metric not in numbers.BY_METRIC:
        raise Http404
    return numbers.BY_METRIC[metric]


def _settings_of(project: Project, metric: str) -> dict[str, Any]:
    # The project's row is a turnstile: two changes at once are noted one after the other.
    Project.objects.select_for_update().get(pk=project.pk)
    return numbers.settings_of(rules_of(project.pk)[metric])


def _note(request: HttpRequest, project: Project, metric: str, before: dict[str, Any]) -> None:
    after = numbers.settings_of(rules_of(project.pk)[metric])
    if after != before:
        user = signed_in(request.user)
        RuleChange.objects.create(project=project, metric=metric, changed_by=user, before=before, after=after)


def _saved(request: HttpRequest, project: Project, metric: str) -> HttpResponse:
    messages.success(request, _("Saved. It counts for captures from now on."))
    return redirect(f"{request.path.rpartition('/rules/')[0]}/rules/#rule-{metric}")


def _page(request: HttpRequest, project: Project, bound: RuleForm | None = None) -> HttpResponse:
    own = rules_of(project.pk)
    changed = list(project.rule_changes.select_related("changed_by")[:HISTORY_LENGTH])
    context = {
        "project": project,
        "is_owner": role_in(request.user, project) == Role.OWNER,
        "rules": [_row(own[metric], changed, bound) for metric in numbers.BY_METRIC],
        "history": [_change_row(one) for one in changed],
    }
    return render(request, "alerts/rules.html", context, status=422 if bound else 200)


def _row(rule: numbers.Rule, changed: list[RuleChange], bound: RuleForm | None) -> dict[str, Any]:
    mine = bound is not None and bound.rule.metric == rule.metric
    return {
        "metric": rule.metric,
        "name": wording.name(rule.metric),
        "text": wording.rule_text(rule),
        "scope": wording.scope_text(rule),
        "enabled": rule.enabled,
        "is_default": rule == numbers.BY_METRIC[rule.metric],
        "default_text": wording.rule_text(numbers.BY_METRIC[rule.metric]),
        "change": next((one for one in changed if one.metric == rule.metric), None),
        "form": bound if mine else RuleForm(rule, prefix=rule.metric),
        "open": mine,
    }


def _change_row(one: RuleChange) -> dict[str, Any]:
    sides = [ProjectRule(metric=one.metric, **settings).rule() for settings in (one.before, one.after)]
    before, after = (f"{wording.rule_text(rule)} ({wording.scope_text(rule)})" for rule in sides)
    return {"change": one, "name": wording.name(one.metric), "before": before, "after": after}
