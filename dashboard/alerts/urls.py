from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.alerts.views import channels, inbox, rules, weekly

app_name = "alerts"
urlpatterns: list[URLPattern] = [
    path("alerts/", inbox.inbox, name="inbox"),
    path("alerts/<int:alert_id>/decide/", inbox.decide, name="decide"),
    path("alerts/<int:alert_id>/assign/", inbox.assign, name="assign"),
    path("projects/<str:slug>/rules/", rules.rules, name="rules"),
    path("projects/<str:slug>/rules/<str:metric>/", rules.rule_edit, name="rule_edit"),
    path("projects/<str:slug>/rules/<str:metric>/reset/", rules.rule_reset, name="rule_reset"),
    path("projects/<str:slug>/channels/", channels.channels, name="channels"),
    path("projects/<str:slug>/channels/new/", channels.channel_new, name="channel_new"),
    path("projects/<str:slug>/channels/<int:channel_id>/test/", channels.channel_test, name="channel_test"),
    path("projects/<str:slug>/channels/<int:channel_id>/switch/", channels.channel_switch, name="channel_switch"),
    path("projects/<str:slug>/channels/<int:channel_id>/delete/", channels.channel_delete, name="channel_delete"),
    path("projects/<str:slug>/channels/<int:channel_id>/weekly/", weekly.weekly, name="weekly"),
    path("projects/<str:slug>/channels/<int:channel_id>/weekly/save/", weekly.weekly_save, name="weekly_save"),
    path("projects/<str:slug>/channels/<int:channel_id>/weekly/test/", weekly.weekly_test, name="weekly_test"),
]
