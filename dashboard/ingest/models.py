"""Bytes on their way in and at rest."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard.accounts.models import Project, User
from dashboard.runs.models import Dump


class Blob(models.Model):
    """Content a project has sent, stored once under its sha256. Another project must send it itself to refer to it."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="blobs")
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "sha256"], name="one_blob_per_project")]
        indexes = [
            models.Index(fields=["sha256"], name="blobs_by_hash"),
            models.Index(fields=["created"], include=["size", "project"], name="blobs_by_time"),
        ]

    def __str__(self) -> str:
        return self.sha256


class ArchiveState(models.TextChoices):
    RECEIVING = "receiving", _("Receiving")
    WAITING = "waiting", _("Waiting")
    UNPACKING = "unpacking", _("Unpacking")
    DONE = "done", _("Done")
    FAILED = "failed", _("Failed")


class IncomingArchive(models.Model):
    """What a person sent from the browser: one archive, or the files of a folder. A worker makes dumps of it."""

    PENDING = (ArchiveState.RECEIVING, ArchiveState.WAITING, ArchiveState.UNPACKING)

    project = models.ForeignKey(Project, models.CASCADE, related_name="archives")
    user = models.ForeignKey(User, models.SET_NULL, null=True, related_name="archives")
    run_key = models.CharField(max_length=100)
    run_name = models.CharField(max_length=200, blank=True)
    capture_key = models.CharField(max_length=100, blank=True, help_text=_("Empty takes the window of each dump."))
    config_name = models.CharField(max_length=200, blank=True)
    config_text = models.TextField(blank=True)
    files = models.JSONField(default=list, help_text=_("[{name, size}] as chosen in the browser"))
    size_bytes = models.BigIntegerField(default=0)
    state = models.CharField(max_length=10, choices=ArchiveState.choices, default=ArchiveState.RECEIVING)
    attempts = models.IntegerField(default=0)
    error = models.TextField(blank=True)
    warnings = models.JSONField(default=list, blank=True)
    captures = models.JSONField(default=list, blank=True, help_text=_("Ids of the captures its dumps went to"))
    created = models.DateTimeField(auto_now_add=True)
    touched = models.DateTimeField(default=timezone.now, help_text=_("Last sign of sender or worker"))

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["state", "touched"], name="archives_by_state")]

    def __str__(self) -> str:
        return f"{self.run_key}: {len(self.files)} files"


class Upload(models.Model):
    """A tus upload: a file of an announced dump until it is whole, or of an archive until that is unpacked.

    Its bytes are in a file named by its id.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    dump = models.ForeignKey(Dump, models.CASCADE, related_name="uploads", null=True)
    archive = models.ForeignKey(IncomingArchive, models.CASCADE, related_name="uploads", null=True)
    name = models.CharField(max_length=300)
    sha256 = models.CharField(max_length=64, blank=True, help_text=_("Empty: not announced, not compared"))
    length = models.BigIntegerField()
    offset = models.BigIntegerField(default=0)
    created = models.DateTimeField(auto_now_add=True)
    touched = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["dump", "sha256"], name="one_upload_per_content"),
            models.UniqueConstraint(fields=["archive", "name"], name="one_upload_per_name"),
            models.CheckConstraint(
                condition=Q(dump__isnull=True, archive__isnull=False) | Q(dump__isnull=False, archive__isnull=True),
                name="upload_of_dump_or_archive",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.offset}/{self.length}"

    @property
    def is_whole(self) -> bool:
        return self.offset == self.length
