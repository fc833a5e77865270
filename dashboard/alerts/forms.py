"""What people may type about channels and alerts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext_lazy as _

from dashboard.alerts.models import AlertState, Channel, WeeklyDigest
from dashboard.alerts.notices import address_problem
from dashboard.alerts.rules import CHECKLIST, Rule, settings_of
from dashboard.alerts.schedule import zone_names
from dashboard.runs.metrics import CHECKLIST as CHECKLIST_ITEMS


class ChannelForm(forms.ModelForm):  # type: ignore[type-arg]
    language = forms.ChoiceField(choices=settings.LANGUAGES, label=_("Language"))

    class Meta:
        model = Channel
        fields = ["name", "url", "language"]
        labels = {"name": _("Name"), "url": _("Address")}
        widgets = {"url": forms.TextInput(attrs={"autocomplete": "off"})}  # it holds secrets, browsers remember

    def clean_url(self) -> str:
        address = str(self.cleaned_data["url"]).strip()
        problem = address_problem(address)
        if problem:
            raise forms.ValidationError(problem)
        return address


class WeeklyForm(forms.ModelForm):  # type: ignore[type-arg]
    enabled = forms.BooleanField(required=False, label=_("Send a weekly digest"))
    day = forms.TypedChoiceField(coerce=int, choices=WEEKDAYS.items, label=_("Day"))
    hour = forms.TypedChoiceField(coerce=int, choices=[(hour, f"{hour:02}:00") for hour in range(24)], label=_("Hour"))
    zone = forms.ChoiceField(choices=lambda: [(name, name) for name in zone_names()], label=_("Time zone"))
    even_quiet = forms.BooleanField(required=False, label=_("Also when nothing happened"))

    class Meta:
        model = WeeklyDigest
        fields = ["enabled", "day", "hour", "zone", "even_quiet"]


class DecisionForm(forms.Form):
    state = forms.ChoiceField(choices=AlertState.choices)
    note = forms.CharField(max_length=1000, required=False)


class RuleForm(forms.Form):
    """What a project may change of one rule. Shares are typed in percent or points."""

    enabled = forms.BooleanField(required=False, label=_("On"))
    effect = forms.FloatField(min_value=0.1, max_value=100, label=_("Least change"))
    limit = forms.FloatField(
        min_value=0,
        max_value=100,
        required=False,
        label=_("Limit (%)"),
        help_text=_("Passing it is told, however small the change. Empty: no limit."),
    )
    items = forms.MultipleChoiceField(
        choices=[(key, names[0]) for key, names in CHECKLIST_ITEMS.items()],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        label=_("Items"),
        help_text=_("None ticked: all of them."),
    )
    tag = forms.CharField(max_length=40, required=False, label=_("Only runs with this tag"))
    model_name = forms.CharField(max_length=100, required=False, label=_("Only this model"))
    least_devices = forms.IntegerField(
        min_value=1, max_value=1_000_000, required=False, label=_("Only from so many cards on")
    )

    def __init__(self, rule: Rule, *args: Any, **kwargs: Any) -> None:
        now = settings_of(rule)
        shown = {name: None if now[name] is None else round(now[name] * 100, 6) for name in ("effect", "limit")}
        kwargs["initial"] = {**now, **shown}
        super().__init__(*args, **kwargs)
        self.rule = rule
        if rule.metric == CHECKLIST:
            del self.fields["effect"], self.fields["limit"]
            return
        del self.fields["items"]
        if rule.metric != "cast_ratio":
            del self.fields["limit"]
        unit = _("Least change (points)") if rule.absolute is not None else _("Least change (%)")
        self.fields["effect"].label = unit

    def wanted(self) -> dict[str, Any]:
        """Fields of the project's rule."""
        found = {**settings_of(self.rule), **self.cleaned_data}
        for name in ("effect", "limit"):
            if name in self.fields and found[name] is not None:
                found[name] = found[name] / 100
        return found

    def is_default(self, default: Rule) -> bool:
        return self.wanted() == settings_of(default)
