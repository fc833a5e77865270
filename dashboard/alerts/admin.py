"""For operators: what was raised and what was sent."""

from __future__ import annotations

from django.contrib import admin

from dashboard.alerts.models import Alert, Delivery


@admin.register(Alert)
class AlertAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["metric", "old_value", "new_value", "project", "state", "created"]
    list_filter = ["state", "metric", "project"]
    raw_id_fields = ["capture", "previous", "decided_by"]


@admin.register(Delivery)
class DeliveryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["channel", "alert", "created", "attempts", "sent", "gave_up"]
    list_filter = ["gave_up", "channel__project"]
    raw_id_fields = ["alert", "channel"]
