"""For operators: what is there, what failed and why, and trying it again."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard.runs.models import Capture, Dump, DumpState, Run, Waiver


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "key", "project", "model_name", "capture_count", "last_capture_at"]
    list_filter = ["project", "archived"]
    list_select_related = ["project"]
    search_fields = ["name", "key"]
    raw_id_fields = ["project"]


@admin.register(Capture)
class CaptureAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["key", "run", "state", "rank_count", "world_size", "captured_at", "rollup_due", "rolled_up"]
    list_filter = ["state", "rollup_due"]
    list_select_related = ["run"]
    search_fields = ["key", "run__name", "run__key"]
    raw_id_fields = ["run"]
    exclude = ["report"]
    actions = ["roll_up"]

    @admin.action(description=_("Sum up again"))
    def roll_up(self, request: HttpRequest, captures: QuerySet[Capture]) -> None:
        count = captures.update(rollup_due=True)
        self.message_user(request, f"{count} captures will be summed up again.")


@admin.register(Dump)
class DumpAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["id", "capture", "rank", "host", "state", "attempts", "progress", "heartbeat", "error"]
    list_filter = ["state"]
    list_select_related = ["capture__run"]
    search_fields = ["=id", "error", "capture__key"]
    raw_id_fields = ["capture"]
    exclude = ["entry", "source", "files"]
    readonly_fields = ["files_sha256", "size_bytes", "frames"]
    actions = ["retry"]

    @admin.action(description=_("Digest again"))
    def retry(self, request: HttpRequest, dumps: QuerySet[Dump]) -> None:
        """The sweep sends them to the queue: this app knows nothing of it."""
        again = dumps.filter(state__in=(DumpState.FAILED, DumpState.DIGESTED))
        count = again.update(state=DumpState.UPLOADED, attempts=0, error="", progress=0, uploaded_at=timezone.now())
        self.message_user(request, f"{count} dumps wait for a worker.", messages.SUCCESS)


@admin.register(Waiver)
class WaiverAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["run", "item", "owner", "expires"]
    list_select_related = ["run", "owner"]
    raw_id_fields = ["run", "owner"]
