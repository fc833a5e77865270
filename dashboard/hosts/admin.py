from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from dashboard.hosts.models import Agent, CaptureRequest


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Agent)
class AgentAdmin(ReadOnly):
    list_display = ("host", "project", "version", "last_seen", "trouble")
    list_filter = ("project",)


@admin.register(CaptureRequest)
class CaptureRequestAdmin(ReadOnly):
    list_display = ("run", "kind", "steps", "state", "asked_by", "created", "ended")
    list_filter = ("state",)
