"""People, projects, who may do what, and the tokens that agents carry."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z"
key_validator = RegexValidator(KEY_PATTERN, _("Letters, digits, '.', '_' and '-', at most 100."))


class User(AbstractUser):
    """A person. Their own table so that it can grow without a data move."""


LONGEST_KEEP = 36_500


class Retention(NamedTuple):
    """Days for which sent files, tables of kernels and whole captures are kept; 0: for good."""

    uploads: int
    kernels: int
    captures: int


RETENTION_NAMES = {
    "keep_uploads_days": _("Sent files (days)"),
    "keep_kernels_days": _("Tables of kernels (days)"),
    "keep_captures_days": _("Whole captures (days)"),
}


class ProjectQuerySet(models.QuerySet["Project"]):
    def visible_to(self, user: User) -> ProjectQuerySet:
        """Projects that `user` is a member of; a superuser sees all."""
        return self if user.is_superuser else self.filter(members__user=user)


DEMO = "demo"
"""Slug of the project that a first start fills with the demo."""


class Project(models.Model):
    slug = models.CharField(max_length=100, unique=True, validators=[key_validator])
    name = models.CharField(max_length=200)
    description = models.TextField(blank=True)
    peak_tflops = models.FloatField(
        null=True,
        blank=True,
        help_text=_("For MFU, where neither the dump nor the chip table names a peak; TFLOPS per device."),
    )
    max_bytes = models.BigIntegerField(null=True, blank=True, help_text=_("Storage limit; empty takes the server's."))
    keep_uploads_days = models.PositiveIntegerField(null=True, blank=True, validators=[MaxValueValidator(LONGEST_KEEP)])
    keep_kernels_days = models.PositiveIntegerField(null=True, blank=True, validators=[MaxValueValidator(LONGEST_KEEP)])
    keep_captures_days = models.PositiveIntegerField(
        null=True, blank=True, validators=[MaxValueValidator(LONGEST_KEEP)]
    )
    created = models.DateTimeField(auto_now_add=True)

    objects = ProjectQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def byte_limit(self) -> int:
        return self.max_bytes if self.max_bytes is not None else settings.MAX_PROJECT_BYTES

    @property
    def retention(self) -> Retention:
        """How long things of this project are kept: its own answer, or this server's."""
        return Retention(
            *(
                getattr(settings, f"KEEP_{name.upper()}_DAYS")
                if (own := getattr(self, f"keep_{name}_days")) is None
                else own
                for name in Retention._fields
            )
        )


class RetentionChange(models.Model):
    """Who changed how long a project's things are kept. Rows stay."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="retention_changes")
    changed_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created = models.DateTimeField(default=timezone.now)
    before = models.JSONField(help_text=_("Days by what is kept; null: the server's"))
    after = models.JSONField()

    class Meta:
        ordering = ["-created", "-id"]

    @property
    def rows(self) -> list[tuple[Any, int | None, int | None]]:
        """(what, days before, days after) of what was changed."""
        return [
            (RETENTION_NAMES[name], self.before[name], self.after[name])
            for name in self.after
            if self.before[name] != self.after[name]
        ]


class Role(models.TextChoices):
    OWNER = "owner", _("Owner")
    MEMBER = "member", _("Member")
    VIEWER = "viewer", _("Viewer")


class Member(models.Model):
    project = models.ForeignKey(Project, models.CASCADE, related_name="members")
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="one_membership_per_project")]

    def __str__(self) -> str:
        return f"{self.user} in {self.project}: {self.role}"


class Scope(models.TextChoices):
    UPLOAD = "upload", _("Upload")
    READ = "read", _("Read")
    TRIAGE = "triage", _("Decide about alerts")


TOKEN_PREFIX = "sst"


class AgentTokenManager(models.Manager["AgentToken"]):
    def issue(
        self, project: Project, name: str, scopes: list[str], user: User | None = None, days: int | None = None
    ) -> tuple[AgentToken, str]:
        """A new token and its text, which is shown once and never stored."""
        public, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        expires = timezone.now() + timedelta(days=days) if days else None
        token = self.create(
            project=project,
            name=name,
            scopes=scopes,
            public=public,
            digest=_digest(secret),
            created_by=user,
            expires=expires,
        )
        return token, f"{TOKEN_PREFIX}_{public}_{secret}"

    def find(self, text: str) -> AgentToken | None:
        """The live token that `text` belongs to; None for an unknown, revoked or expired one."""
        prefix, _, rest = text.partition("_")
        public, _, secret = rest.partition("_")
        if prefix != TOKEN_PREFIX or not secret or len(text) > 200:
            return None
        token = self.select_related("project").filter(public=public).first()
        if token is None or not hmac.compare_digest(token.digest, _digest(secret)):
            return None
        return token if token.is_live else None


def _digest(secret: str) -> str:
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()


class AgentToken(models.Model):
    project = models.ForeignKey(Project, models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    scopes = ArrayField(models.CharField(max_length=20, choices=Scope.choices))
    public = models.CharField(max_length=12, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True)
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)
    revoked = models.DateTimeField(null=True, blank=True)
    last_used = models.DateTimeField(null=True, blank=True)

    objects = AgentTokenManager()

    class Meta:
        ordering = ["-created"]

    def __str__(self) -> str:
        return f"{self.name} ({self.public})"

    @property
    def is_live(self) -> bool:
        return self.revoked is None and (self.expires is None or self.expires > timezone.now())

    def touch(self) -> None:
        """Note the use, at most once a minute: an upload makes hundreds of calls."""
        now = timezone.now()
        if self.last_used is None or now - self.last_used > timedelta(minutes=1):
            AgentToken.objects.filter(pk=self.pk).update(last_used=now)
