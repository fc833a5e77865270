from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from dashboard.ingest.models import Blob, IncomingArchive, Upload


@admin.register(Blob)
class BlobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["sha256", "project", "size", "created"]
    list_select_related = ["project"]
    search_fields = ["sha256"]
    readonly_fields = ["project", "sha256", "size"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(Upload)
class UploadAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["id", "name", "offset", "length", "touched"]
    readonly_fields = ["dump", "archive", "name", "sha256", "length", "offset"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(IncomingArchive)
class IncomingArchiveAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["id", "project", "run_key", "state", "attempts", "error", "created"]
    list_filter = ["state"]
    list_select_related = ["project"]
    readonly_fields = ["project", "user", "files", "size_bytes", "captures", "warnings"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
