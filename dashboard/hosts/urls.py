from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.hosts import views

app_name = "hosts"
urlpatterns: list[URLPattern] = [
    path("projects/<str:slug>/hosts/", views.hosts, name="hosts"),
    path("projects/<str:slug>/hosts/<int:agent_id>/forget/", views.forget, name="forget"),
    path("runs/<int:run_id>/requests/", views.requests_of_run, name="requests"),
    path("runs/<int:run_id>/requests/new/", views.ask, name="ask"),
    path("requests/<int:request_id>/take-back/", views.take_back, name="take_back"),
]
