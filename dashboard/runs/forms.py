from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard.runs.models import Run, Waiver

LONGEST_WAIVER_DAYS = 366


class RunForm(forms.ModelForm):  # type: ignore[type-arg]
    """Name, tags and whether the run is listed or is the project's reference."""

    tags = forms.CharField(required=False, label=_("Tags"), help_text=_("Separated by commas."), max_length=500)

    class Meta:
        model = Run
        fields = ["name", "tags", "archived"]
        labels = {"name": _("Name"), "archived": _("Archived")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["tags"] = ", ".join(self.instance.tags)

    def clean_tags(self) -> list[str]:
        tags = [tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()]
        if any(len(tag) > 40 for tag in tags):
            raise forms.ValidationError(_("A tag has 40 characters at most."))
        return list(dict.fromkeys(tags))


class WaiverForm(forms.ModelForm):  # type: ignore[type-arg]
    """Someone answers for a violation until a day."""

    class Meta:
        model = Waiver
        fields = ["reason", "expires"]

    def clean_expires(self) -> Any:
        expires = self.cleaned_data["expires"]
        today = timezone.localdate()
        if not today < expires <= today + timedelta(days=LONGEST_WAIVER_DAYS):
            raise forms.ValidationError(_("The day lies between tomorrow and a year from now."))
        return expires
