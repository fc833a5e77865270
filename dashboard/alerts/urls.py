from __future__ import annotations

from django.urls import URLPattern

app_name = "alerts"
urlpatterns: list[URLPattern] = []
