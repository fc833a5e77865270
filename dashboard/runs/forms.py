from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django import forms
from django.db import transaction
from django.db.models import F, Func, QuerySet, Value
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from dashboard.accounts.models import Member, User
from dashboard.runs.access import CHANGERS
from dashboard.runs.models import Run, SavedView, Waiver

LONGEST_WAIVER_DAYS = 366


class RunForm(forms.ModelForm):  # type: ignore[type-arg]
    """Name, tags and whether the run is listed or is the project's reference."""

    tags = forms.CharField(required=False, label=_("Tags"), help_text=_("Separated by commas."), max_length=500)

    class Meta:
        model = Run
        fields = ["name", "tags", "archived"]
        labels = {"name": _("Name"), "archived": _("Archived")}

    reference = forms.BooleanField(required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["tags"] = ", ".join(self.instance.tags)
        self.initial["reference"] = self.instance.is_reference

    def clean_tags(self) -> list[str]:
        tags = [tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()]
        if any(len(tag) > 40 for tag in tags):
            raise forms.ValidationError(_("A tag has 40 characters at most."))
        return list(dict.fromkeys(tags))


class RunsForm(forms.Form):
    """What to do with several runs of a list at once: those named, or all that the list's filters leave."""

    run = forms.Field(required=False, widget=forms.SelectMultiple)
    all = forms.BooleanField(required=False)
    change = forms.ChoiceField(
        choices=[
            ("tag", _("Add tag")),
            ("untag", _("Remove tag")),
            ("archive", _("Archive")),
            ("restore", _("Restore")),
        ]
    )
    new_tag = forms.CharField(required=False, max_length=40, label=_("Tag"))

    def clean_run(self) -> set[int]:
        given = self.cleaned_data["run"] or []
        return {int(text) for text in given if text.isascii() and text.isdecimal() and len(text) < 19}

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not data.get("run") and not data.get("all"):
            raise forms.ValidationError(_("Choose runs first."))
        if data.get("change") in ("tag", "untag") and not data.get("new_tag"):
            raise forms.ValidationError(_("Name the tag."))
        if "," in data.get("new_tag", ""):
            raise forms.ValidationError(_("A tag holds no comma."))
        return data

    def apply(self, runs: QuerySet[Run]) -> str:
        """Change those of `runs`, which the list's filters leave, that were chosen; how many there were, in words."""
        change, tag = self.cleaned_data["change"], self.cleaned_data["new_tag"]
        with transaction.atomic():
            if not self.cleaned_data["all"]:
                runs = runs.filter(pk__in=self.cleaned_data["run"])
            # Locked in one order, so that two changes at once wait for each other.
            locked = runs.order_by("pk").select_for_update(no_key=True, of=("self",)).values_list("pk", flat=True)
            count = Run.objects.filter(pk__in=list(locked)).update(**CHANGES[change](tag))
        return ngettext("%d run changed.", "%d runs changed.", count) % count


def _without(tag: str) -> Func:
    return Func(F("tags"), Value(tag), function="array_remove", output_field=Run._meta.get_field("tags"))


def _with(tag: str) -> Func:
    return Func(_without(tag), Value(tag), function="array_append", output_field=Run._meta.get_field("tags"))


CHANGES: dict[str, Callable[[str], dict[str, Any]]] = {
    "tag": lambda tag: {"tags": _with(tag)},
    "untag": lambda tag: {"tags": _without(tag)},
    "archive": lambda tag: {"archived": True},
    "restore": lambda tag: {"archived": False},
}


class SavedViewForm(forms.ModelForm):  # type: ignore[type-arg]
    """The name of a saved view."""

    class Meta:
        model = SavedView
        fields = ["name"]


def member_named(run: Run, name: str) -> User:
    """The owner or member of the run's project whom a form names. Viewers answer for nothing."""
    members = Member.objects.filter(project=run.project_id, role__in=CHANGERS, user__is_active=True)
    member = members.filter(user__username=name).select_related("user").first()
    if member is None:
        raise forms.ValidationError(_("%(name)s is no owner or member of this project.") % {"name": name})
    return member.user


class WaiverForm(forms.ModelForm):  # type: ignore[type-arg]
    """A member answers for a violation until a day; without a name the one who says so."""

    owner = forms.CharField(required=False, max_length=150)
    reason = forms.CharField(max_length=1000)

    class Meta:
        model = Waiver
        fields = ["reason", "expires", "every_run"]

    def __init__(self, run: Run, giver: User, data: Any = None) -> None:
        super().__init__(data)
        self.run, self.giver = run, giver

    def clean_owner(self) -> User:
        name = self.cleaned_data["owner"].strip()
        return member_named(self.run, name) if name else self.giver

    def clean_expires(self) -> Any:
        expires = self.cleaned_data["expires"]
        today = timezone.localdate()
        if not today < expires <= today + timedelta(days=LONGEST_WAIVER_DAYS):
            raise forms.ValidationError(_("The day lies between tomorrow and a year from now."))
        return expires


class AssignmentForm(forms.Form):
    """Name of a member of the run's project; empty takes the violation from whoever had it."""

    owner = forms.CharField(required=False, max_length=150)

    def __init__(self, run: Run, data: Any = None) -> None:
        super().__init__(data)
        self.run = run

    def clean_owner(self) -> User | None:
        name = self.cleaned_data["owner"].strip()
        return member_named(self.run, name) if name else None
