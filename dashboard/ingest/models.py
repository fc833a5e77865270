"""Bytes on their way in and at rest."""

from __future__ import annotations

import uuid

from django.db import models

from dashboard.accounts.models import Project
from dashboard.runs.models import Dump


class Blob(models.Model):
    """Content a project has sent, stored once under its sha256. Another project must send it itself to refer to it."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="blobs")
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "sha256"], name="one_blob_per_project")]
        indexes = [models.Index(fields=["sha256"], name="blobs_by_hash")]


class Upload(models.Model):
    """A tus upload that is not finished. Its bytes are in a file named by its id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    dump = models.ForeignKey(Dump, models.CASCADE, related_name="uploads")
    name = models.CharField(max_length=300)
    sha256 = models.CharField(max_length=64)
    length = models.BigIntegerField()
    offset = models.BigIntegerField(default=0)
    created = models.DateTimeField(auto_now_add=True)
    touched = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["dump", "sha256"], name="one_upload_per_content")]
