from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.alerts import views

app_name = "alerts"
urlpatterns: list[URLPattern] = [
    path("alerts/", views.inbox, name="inbox"),
    path("alerts/<int:alert_id>/decide/", views.decide, name="decide"),
    path("projects/<str:slug>/channels/", views.channels, name="channels"),
    path("projects/<str:slug>/channels/new/", views.channel_new, name="channel_new"),
    path("projects/<str:slug>/channels/<int:channel_id>/test/", views.channel_test, name="channel_test"),
    path("projects/<str:slug>/channels/<int:channel_id>/switch/", views.channel_switch, name="channel_switch"),
    path("projects/<str:slug>/channels/<int:channel_id>/delete/", views.channel_delete, name="channel_delete"),
]
