from __future__ import annotations

from django.apps import AppConfig


class HostsConfig(AppConfig):
    name = "dashboard.hosts"
    label = "hosts"
