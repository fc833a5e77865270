"""What people may type about projects, members and tokens."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from dashboard.accounts.models import (
    RETENTION_NAMES,
    AgentToken,
    Member,
    Project,
    Retention,
    RetentionChange,
    Role,
    Scope,
    User,
)

TOKEN_DAYS = [(30, _("30 days")), (90, _("90 days")), (365, _("One year")), (0, _("Never"))]


class ProjectForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Project
        fields = ["name", "slug", "description"]
        labels = {"name": _("Name"), "slug": _("Short name"), "description": _("Description")}
        help_texts = {"slug": _("Stands in addresses and in the agent's --project. It cannot be changed later.")}
        widgets = {"description": forms.Textarea(attrs={"rows": 3})}


class SettingsForm(forms.ModelForm):  # type: ignore[type-arg]
    peak_tflops = forms.FloatField(
        required=False,
        min_value=0.001,
        max_value=1e6,
        label=_("Peak TFLOPS per device"),
        help_text=_(
            "Denominator of MFU where neither the dump nor the chip table names one; counts for the next captures."
        ),
    )

    class Meta:
        model = Project
        fields = ["name", "description", "peak_tflops"]
        labels = {"name": _("Name"), "description": _("Description")}
        widgets = {"description": forms.Textarea(attrs={"rows": 3})}


class RetentionForm(forms.ModelForm):  # type: ignore[type-arg]
    """Empty takes the server's answer, 0 keeps for good."""

    class Meta:
        model = Project
        fields = ["keep_uploads_days", "keep_kernels_days", "keep_captures_days"]
        labels = RETENTION_NAMES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in Retention._fields:
            site = getattr(settings, f"KEEP_{name.upper()}_DAYS")
            text = (
                _("Empty: %(days)s days, as on the whole server. 0: for good.") if site else _("Empty or 0: for good.")
            )
            self.fields[f"keep_{name}_days"].help_text = text % {"days": site} if site else text

    def save_by(self, user: User) -> Project:
        """Save, and note who changed what."""
        names = [f"keep_{name}_days" for name in Retention._fields]
        with transaction.atomic():
            before = Project.objects.select_for_update().values(*names).get(pk=self.instance.pk)
            project: Project = self.save()
            after = {name: getattr(project, name) for name in names}
            if before != after:
                RetentionChange.objects.create(project=project, changed_by=user, before=before, after=after)
        return project


class MemberForm(forms.Form):
    person = forms.CharField(
        max_length=254, label=_("Username or e-mail"), widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    role = forms.ChoiceField(choices=Role.choices, initial=Role.MEMBER, label=_("Role"))

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.project = project

    def clean_person(self) -> User:
        text = self.cleaned_data["person"].strip()
        found = User.objects.filter(Q(username=text) | Q(email__iexact=text), is_active=True)[:2]
        if len(found) != 1:
            raise forms.ValidationError(_("Nobody here has that username or e-mail. An operator can add people."))
        if Member.objects.filter(project=self.project, user=found[0]).exists():
            raise forms.ValidationError(_("This person is a member already."))
        return found[0]


class TokenForm(forms.Form):
    name = forms.CharField(max_length=100, label=_("Name"), help_text=_("Such as the host or job that will carry it."))
    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        initial=[Scope.UPLOAD, Scope.READ],
        widget=forms.CheckboxSelectMultiple,
        label=_("Scopes"),
    )
    days = forms.TypedChoiceField(coerce=int, choices=TOKEN_DAYS, initial=365, label=_("Expires after"))

    def issue(self, project: Project, user: User) -> tuple[AgentToken, str]:
        data = self.cleaned_data
        return AgentToken.objects.issue(project, data["name"], data["scopes"], user, data["days"] or None)
