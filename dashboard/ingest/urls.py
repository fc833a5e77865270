from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.ingest import agent, downloads, tus, views
from dashboard.runs.views.upload import browser_upload

app_name = "ingest"
urlpatterns: list[URLPattern] = [
    path("healthz", views.healthz, name="healthz"),
    path("agent/stepscope-agent.pyz", agent.agent_pyz, name="agent_pyz"),
    path("api/v1/files", tus.files, name="files"),
    path("api/v1/files/<uuid:upload_id>", tus.file, name="file"),
    path("dumps/<int:dump_id>/files/", downloads.dump_files, name="dump_files"),
    path("dumps/<int:dump_id>/files/<int:position>/", downloads.dump_file, name="dump_file"),
    path("dumps/<int:dump_id>/retry/", views.retry, name="retry"),
    path("projects/<str:slug>/settings/retention/preview/", views.retention_preview, name="retention_preview"),
    path("projects/<str:slug>/upload/", browser_upload, name="browser_upload"),
]
