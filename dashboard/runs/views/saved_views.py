from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard.runs import columns
from dashboard.runs.access import get_project_or_404, signed_in
from dashboard.runs.forms import SavedViewForm
from dashboard.runs.models import SavedView
from dashboard.runs.views.page import say_errors

MOST = 30


@login_required
@require_POST
def save_view(request: HttpRequest, slug: str) -> HttpResponse:
    """Keep the list's filters, order and columns under a name; a name that is taken gets the new ones."""
    project, user = get_project_or_404(request.user, slug), signed_in(request.user)
    query = columns.view_query(QueryDict(request.POST.get("query", "")[:4000]))[:2000]
    form = SavedViewForm(request.POST)
    mine = SavedView.objects.filter(project=project, user=user)
    if not form.is_valid():
        say_errors(request, form)
    elif mine.exclude(name=form.cleaned_data["name"]).count() >= MOST:
        messages.error(request, _("You have %d saved views in this project; delete one first.") % MOST)
    else:
        mine.update_or_create(project=project, user=user, name=form.cleaned_data["name"], defaults={"query": query})
        messages.success(request, _("Saved."))
    return redirect(f"{reverse('runs:run_list', args=[slug])}?{query}")


@login_required
@require_POST
def delete_view(request: HttpRequest, slug: str, view_id: int) -> HttpResponse:
    project, user = get_project_or_404(request.user, slug), signed_in(request.user)
    get_object_or_404(SavedView, pk=view_id, project=project, user=user).delete()
    messages.success(request, _("The view is deleted; its runs stay."))
    return redirect("runs:run_list", slug)
