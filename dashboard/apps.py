"""Django's own static files app, told what of the ECharts package no page uses."""

from __future__ import annotations

from django.contrib.staticfiles.apps import StaticFilesConfig as DjangoStaticFilesConfig


class StaticFilesConfig(DjangoStaticFilesConfig):
    ignore_patterns = [
        *DjangoStaticFilesConfig.ignore_patterns,
        "*.map",
        "echarts.common*",
        "echarts.esm*",
        "echarts.simple*",
        "echarts.js",
        "extension",
        "package.json",
    ]
