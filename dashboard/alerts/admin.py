"""For operators: what was raised and what was sent."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from dashboard.alerts.models import Alert, Delivery, ProjectRule


@admin.register(Alert)
class AlertAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["metric", "old_value", "new_value", "project", "state", "created"]
    list_filter = ["state", "metric", "project"]
    raw_id_fields = ["capture", "previous", "escalates", "assignee"]
    readonly_fields = ["state", "note", "decided_by", "decided_at"]  # answered in the inbox, which keeps every answer


@admin.register(Delivery)
class DeliveryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["channel", "is_test", "week_end", "created", "attempts", "sent", "gave_up"]
    list_filter = ["gave_up", "channel__project"]
    raw_id_fields = ["alerts", "channel"]


@admin.register(ProjectRule)
class ProjectRuleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["project", "metric", "enabled", "effect", "limit"]
    list_filter = ["project"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # rules are set on the project's page, which notes who did

    def has_change_permission(self, request: HttpRequest, obj: ProjectRule | None = None) -> bool:
        return False
