from __future__ import annotations

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from dashboard import own_metrics
from dashboard.alerts.api_alerts import router as alerts_router
from dashboard.alerts.api_gate import router as gate_router
from dashboard.hosts.api import router as hosts_router
from dashboard.ingest.api import api
from dashboard.mcp.views import mcp

api.add_router("/v1", hosts_router, tags=["agents"])
api.add_router("/v1", gate_router, tags=["read"])
api.add_router("/v1", alerts_router)

# One door with one set of limits: administrators sign in where everybody does.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("dashboard.runs.urls")),
    path("", include("dashboard.alerts.urls")),
    path("", include("dashboard.accounts.urls")),
    path("", include("dashboard.ingest.urls")),
    path("", include("dashboard.hosts.urls")),
    path("api/mcp", mcp, name="mcp"),
    path("metrics", own_metrics.metrics, name="metrics"),
    path("api/", api.urls),
    path("accounts/", include("allauth.urls")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", admin.site.urls),
]

handler400 = "dashboard.refusals.bad_request"
