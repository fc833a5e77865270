"""What got worse, who was told, and what they made of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard.accounts.models import AgentToken, Project, User
from dashboard.alerts import rules, schedule
from dashboard.runs.models import Capture


class AlertState(models.TextChoices):
    OPEN = "open", _("Open")
    ACKNOWLEDGED = "acknowledged", _("Acknowledged")
    FALSE_ALARM = "false_alarm", _("False alarm")
    EXPECTED = "expected", _("Expected change")


class Confirmation(models.TextChoices):
    POINTS = "points", _("by two captures or more")
    SPREAD = "spread", _("by every step of this capture")
    VERDICT = "verdict", _("by the checklist's evidence")


class Alert(models.Model):
    """One metric or checklist item that is worse from `capture` on than it was in `previous`."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="alerts")
    capture = models.ForeignKey(Capture, models.CASCADE, related_name="alerts")
    previous = models.ForeignKey(Capture, models.SET_NULL, null=True, related_name="+")
    confirmation = models.CharField(max_length=10, choices=Confirmation.choices, blank=True)
    escalates = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="+", help_text=_("The alert that it makes worse")
    )
    metric = models.CharField(max_length=40)
    old_value = models.FloatField(null=True)
    new_value = models.FloatField(null=True)
    change = models.FloatField(null=True, help_text=_("Absolute for shares, relative for the rest"))
    cause = models.TextField(blank=True)
    cause_zh = models.TextField(blank=True)
    evidence = models.JSONField(default=dict, blank=True, help_text=_("What the cause points at: rank, type, block"))
    state = models.CharField(max_length=15, choices=AlertState.choices, default=AlertState.OPEN)
    assignee = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="assigned_alerts")
    decided_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    note = models.TextField(blank=True)
    created = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created", "-id"]
        constraints = [models.UniqueConstraint(fields=["capture", "metric"], name="one_alert_per_metric")]
        indexes = [
            models.Index(fields=["project", "state", "-created"], name="alerts_inbox"),
            models.Index(fields=["state", "-created", "-id"], name="alerts_by_time"),
            models.Index(fields=["project", "id"], condition=models.Q(state="open"), name="alerts_open"),
        ]

    def __str__(self) -> str:
        return f"{self.metric} {self.old_value} to {self.new_value}"

    def get_absolute_url(self) -> str:
        """Where it stands in the inbox, whatever its state."""
        return f"{reverse('alerts:inbox')}?alert={self.pk}"

    def decide(self, state: str, note: str, by: User | AgentToken) -> None:
        """Take an answer and keep the earlier ones. Opened again, nobody has decided; the note stays what was typed."""
        person = by if isinstance(by, User) else None
        opened = state == AlertState.OPEN
        self.state, self.note = state, note
        self.decided_by = None if opened else person
        self.decided_at = None if opened else timezone.now()
        with transaction.atomic():
            self.save(update_fields=["state", "note", "decided_by", "decided_at"])
            token = by.name if isinstance(by, AgentToken) else ""
            self.decisions.create(state=state, note=note, person=person, token=token)


class Decision(models.Model):
    """One answer to an alert: by a person, or by a script with a token. Rows stay."""

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="decisions")
    state = models.CharField(max_length=15, choices=AlertState.choices)
    note = models.TextField(blank=True)
    person = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    token = models.CharField(max_length=100, blank=True, help_text=_("Name of the token, where no person decided"))
    created = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created", "-id"]

    @property
    def by(self) -> str:
        """Name of the person or the token; empty for a person who is gone."""
        return self.person.username if self.person else self.token


class Channel(models.Model):
    """Where a project's notices go: one Apprise address."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="channels")
    name = models.CharField(max_length=100)
    url = models.CharField(max_length=1000, help_text=_("Apprise address, such as json://host/path or mailto://..."))
    language = models.CharField(max_length=10, default="en")
    active = models.BooleanField(default=True)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class WeeklyDigest(models.Model):
    """When a channel is told of the project's week: day (0: Monday) and hour of a time zone."""

    channel = models.OneToOneField(Channel, models.CASCADE, primary_key=True, related_name="weekly")
    enabled = models.BooleanField(default=False)
    day = models.PositiveSmallIntegerField(default=0)
    hour = models.PositiveSmallIntegerField(default=9)
    zone = models.CharField(max_length=60, default="UTC")
    even_quiet = models.BooleanField(default=False)
    due = models.DateTimeField(null=True, editable=False)  # empty while it is off
    last = models.DateTimeField(null=True, editable=False)  # end of the last week that was told

    class Meta:
        indexes = [models.Index(fields=["due"], condition=models.Q(due__isnull=False), name="weekly_due")]

    def __str__(self) -> str:
        return f"{self.channel}: day {self.day}, {self.hour}:00 {self.zone}"

    def plan(self, now: datetime) -> None:
        """Set when it comes next: never what was missed while it was off, never twice in a week."""
        self.due = schedule.next_moment(now, self.day, self.hour, self.zone, self.last) if self.enabled else None


class Delivery(models.Model):
    """One notice to one channel, of all alerts that a capture raised at once or of a week: sent, or tried again until
    it is."""

    alerts = models.ManyToManyField(
        Alert, related_name="deliveries", help_text=_("None for a test notice and for a weekly digest")
    )
    week_end = models.DateTimeField(
        null=True, blank=True, help_text=_("End of the week that a weekly digest tells of; empty for other notices")
    )
    quiet = models.BooleanField(default=False, help_text=_("Nothing had happened in that week: nothing was sent"))
    is_test = models.BooleanField(default=False)
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries")
    created = models.DateTimeField(auto_now_add=True)
    due = models.DateTimeField(default=timezone.now)
    attempts = models.IntegerField(default=0)
    sent = models.DateTimeField(null=True, blank=True)
    gave_up = models.BooleanField(default=False)
    error = models.TextField(blank=True)

    class Meta:
        ordering = ["-created", "-id"]
        indexes = [models.Index(fields=["due"], condition=models.Q(sent=None, gave_up=False), name="deliveries_due")]


class ProjectRule(models.Model):
    """How a project wants a metric judged, where it differs from the default rule."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="rules")
    metric = models.CharField(max_length=40)
    enabled = models.BooleanField(default=True)
    effect = models.FloatField(null=True, blank=True, help_text=_("Least change, in the default rule's own unit"))
    limit = models.FloatField(null=True, blank=True)
    tag = models.CharField(max_length=40, blank=True)
    model_name = models.CharField(max_length=100, blank=True)
    least_devices = models.PositiveIntegerField(null=True, blank=True)
    items = ArrayField(models.CharField(max_length=40), default=list, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "metric"], name="one_rule_per_metric")]

    def __str__(self) -> str:
        return f"{self.metric} of {self.project}"

    def rule(self) -> rules.Rule:
        base = rules.BY_METRIC[self.metric]
        return replace(
            base,
            absolute=self.effect if base.absolute is not None else None,
            relative=self.effect if base.relative is not None else None,
            limit=self.limit,
            enabled=self.enabled,
            tag=self.tag,
            model_name=self.model_name,
            least_devices=self.least_devices,
            items=tuple(self.items),
        )


class RuleChange(models.Model):
    """Who changed which rule when, from what to what. Rows stay."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="rule_changes")
    metric = models.CharField(max_length=40)
    changed_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created = models.DateTimeField(default=timezone.now)
    before = models.JSONField()
    after = models.JSONField()

    class Meta:
        ordering = ["-created", "-id"]


def rules_of(project_id: int) -> dict[str, rules.Rule]:
    """The project's rules by metric: its own, and the defaults where it has none."""
    own = {row.metric: row.rule() for row in ProjectRule.objects.filter(project=project_id, metric__in=rules.BY_METRIC)}
    return {**rules.BY_METRIC, **own}
