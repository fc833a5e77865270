"""What people may type about projects, members and tokens."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from dashboard.accounts.models import AgentToken, Member, Project, Role, Scope, User

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


class MemberForm(forms.Form):
    person = forms.CharField(max_length=254, label=_("Username or e-mail"))
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
