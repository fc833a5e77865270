"""Agents on training hosts, the runs they have in hand, and captures that people asked them for."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard.accounts.models import Project, User
from dashboard.runs.models import Capture, Run

SILENT_BEATS = 4
"""An agent that missed so many heartbeats is silent."""
MOST_STEPS = 20
"""A window longer than this is more than a dump can hold."""


class Agent(models.Model):
    """One installed agent in one project. Times are the server's: the host's clock may be wrong."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="agents")
    uid = models.CharField(max_length=100, help_text=_("What the agent calls itself; stays when its host is renamed"))
    host = models.CharField(max_length=200)
    version = models.CharField(max_length=40, blank=True)
    npus = models.JSONField(default=list, blank=True, help_text=_("[{id, chip, serial, health}]"))
    driver = models.CharField(max_length=60, blank=True)
    spool = models.JSONField(default=dict, blank=True, help_text=_("Number of dumps by state"))
    trouble = models.TextField(blank=True)
    first_seen = models.DateTimeField(default=timezone.now)
    last_seen = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["host", "uid"]
        constraints = [models.UniqueConstraint(fields=["project", "uid"], name="one_agent_per_uid")]

    def __str__(self) -> str:
        return self.host

    @property
    def is_silent(self) -> bool:
        return self.last_seen < silent_since()


def silent_since() -> datetime:
    """Who was last heard before this moment is silent."""
    return timezone.now() - timedelta(seconds=SILENT_BEATS * settings.HEARTBEAT_SECONDS)


class AgentRun(models.Model):
    """A run that an agent has in hand: its logs are followed there, or its callback writes there."""

    agent = models.ForeignKey(Agent, models.CASCADE, related_name="runs")
    run = models.ForeignKey(Run, models.CASCADE, related_name="agents")
    step = models.BigIntegerField(null=True)
    via = models.CharField(max_length=10, blank=True, help_text=_("How a capture can be made: callback or dynamic"))
    first_seen = models.DateTimeField(default=timezone.now)
    last_seen = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["agent", "run"], name="one_row_per_agent_and_run")]


class RequestKind(models.TextChoices):
    NEXT = "next", _("The next steps")
    STEPS = "steps", _("From a step on")


class RequestState(models.TextChoices):
    REQUESTED = "requested", _("Requested")
    ACCEPTED = "accepted", _("Accepted")
    COLLECTING = "collecting", _("Collecting")
    UPLOADED = "uploaded", _("Uploaded")
    FAILED = "failed", _("Failed")
    EXPIRED = "expired", _("Expired")


OPEN_STATES = (RequestState.REQUESTED, RequestState.ACCEPTED, RequestState.COLLECTING)


class CaptureRequest(models.Model):
    """A capture of a running job that a person asked for. Rows stay: who asked for what, when, what came of it."""

    LEVELS = [(name, name) for name in ("Level0", "Level1", "Level2")]

    run = models.ForeignKey(Run, models.CASCADE, related_name="capture_requests")
    asked_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    kind = models.CharField(max_length=5, choices=RequestKind.choices, default=RequestKind.NEXT)
    first_step = models.BigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(2**53)],
        help_text=_("Asked for, or for the next steps settled by the first agent that accepts"),
    )  # fmt: skip
    steps = models.IntegerField(default=3, validators=[MinValueValidator(1), MaxValueValidator(MOST_STEPS)])
    ranks = models.JSONField(null=True, blank=True, help_text=_('null: the callback\'s own choice; "all"; or a list'))
    level = models.CharField(max_length=10, choices=LEVELS, default="Level1")
    state = models.CharField(max_length=10, choices=RequestState.choices, default=RequestState.REQUESTED)
    reason = models.TextField(blank=True)
    agent = models.ForeignKey(Agent, models.SET_NULL, null=True, related_name="requests")
    capture = models.ForeignKey(Capture, models.SET_NULL, null=True, related_name="+")
    created = models.DateTimeField(default=timezone.now)
    accepted = models.DateTimeField(null=True)
    collecting = models.DateTimeField(null=True)
    ended = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["run"], condition=Q(state__in=OPEN_STATES), name="one_open_request_per_run")
        ]
        indexes = [models.Index(fields=["run", "-id"], name="requests_of_run")]

    def __str__(self) -> str:
        return f"{self.run}: {self.state}"

    @property
    def capture_key(self) -> str:
        """The key of the capture that comes of it."""
        return f"request-{self.pk}"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES
