"""What a person may ask of a running job."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from dashboard.hosts.models import CaptureRequest, RequestKind

MOST_RANKS = 64
LARGEST_RANK = 1_000_000
STAGES, ALL, CHOSEN = "stages", "all", "chosen"


class RequestForm(forms.ModelForm):  # type: ignore[type-arg]
    """The next k steps or k steps from one on, of some ranks."""

    which = forms.ChoiceField(
        label=_("Ranks"),
        choices=[
            (STAGES, _("First of each pipeline stage")),
            (ALL, _("All")),
            (CHOSEN, _("These:")),
        ],
        initial=STAGES,
    )
    chosen = forms.CharField(label=_("Rank numbers"), required=False, max_length=400)

    class Meta:
        model = CaptureRequest
        fields = ["kind", "first_step", "steps", "level"]
        labels = {"kind": _("When"), "first_step": _("First step"), "steps": _("Steps"), "level": _("Level")}

    def clean_chosen(self) -> list[int]:
        text = self.cleaned_data["chosen"].replace(",", " ")
        try:
            ranks = sorted({int(part) for part in text.split()})
        except ValueError as error:
            raise ValidationError(_("Rank numbers, with commas between them.")) from error
        if len(ranks) > MOST_RANKS or any(not 0 <= rank <= LARGEST_RANK for rank in ranks):
            raise ValidationError(_("At most 64 ranks, from 0 on."))
        return ranks

    def clean(self) -> dict[str, Any]:
        found = super().clean() or {}
        if found.get("kind") == RequestKind.NEXT:
            found["first_step"] = None
        elif found.get("kind") == RequestKind.STEPS and found.get("first_step") is None:
            self.add_error("first_step", _("Which step to begin at?"))
        if found.get("which") == CHOSEN and found.get("chosen") == []:
            self.add_error("chosen", _("Which ranks?"))
        return found

    def wanted(self) -> dict[str, Any]:
        """Fields of the request."""
        found = self.cleaned_data
        ranks = {STAGES: None, ALL: "all", CHOSEN: found["chosen"]}[found["which"]]
        return {name: found[name] for name in ("kind", "first_step", "steps", "level")} | {"ranks": ranks}
