"""What got worse, who was told, and what they made of it."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard.accounts.models import Project, User
from dashboard.runs.models import Capture


class AlertState(models.TextChoices):
    OPEN = "open", _("Open")
    ACKNOWLEDGED = "acknowledged", _("Acknowledged")
    FALSE_ALARM = "false_alarm", _("False alarm")
    EXPECTED = "expected", _("Expected change")


class Alert(models.Model):
    project = models.ForeignKey(Project, models.CASCADE, related_name="alerts")
    capture = models.ForeignKey(Capture, models.CASCADE, related_name="alerts")
    previous = models.ForeignKey(Capture, models.SET_NULL, null=True, related_name="+")
    metric = models.CharField(max_length=40)
    old_value = models.FloatField(null=True)
    new_value = models.FloatField(null=True)
    change = models.FloatField(null=True, help_text=_("Absolute for shares, relative for the rest"))
    cause = models.TextField(blank=True)
    cause_zh = models.TextField(blank=True)
    state = models.CharField(max_length=15, choices=AlertState.choices, default=AlertState.OPEN)
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
        ]

    def __str__(self) -> str:
        return f"{self.metric} {self.old_value} -> {self.new_value}"


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


class Delivery(models.Model):
    """One notice to one channel: sent, or tried again until it is."""

    alert = models.ForeignKey(
        Alert, models.CASCADE, null=True, blank=True, related_name="deliveries", help_text=_("Empty for a test notice")
    )
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries")
    created = models.DateTimeField(auto_now_add=True)
    due = models.DateTimeField(default=timezone.now)
    attempts = models.IntegerField(default=0)
    sent = models.DateTimeField(null=True, blank=True)
    gave_up = models.BooleanField(default=False)
    error = models.TextField(blank=True)

    class Meta:
        ordering = ["-created"]
        constraints = [models.UniqueConstraint(fields=["alert", "channel"], name="one_delivery_per_channel")]
