"""What people may type about channels and alerts."""

from __future__ import annotations

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from dashboard.alerts.models import AlertState, Channel
from dashboard.alerts.notices import address_problem


class ChannelForm(forms.ModelForm):  # type: ignore[type-arg]
    language = forms.ChoiceField(choices=settings.LANGUAGES, label=_("Language"))

    class Meta:
        model = Channel
        fields = ["name", "url", "language"]
        labels = {"name": _("Name"), "url": _("Address")}

    def clean_url(self) -> str:
        address = str(self.cleaned_data["url"]).strip()
        problem = address_problem(address)
        if problem:
            raise forms.ValidationError(problem)
        return address


class DecisionForm(forms.Form):
    state = forms.ChoiceField(choices=AlertState.choices)
    note = forms.CharField(max_length=1000, required=False)
