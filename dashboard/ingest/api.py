"""The JSON API, described by OpenAPI at /api/docs. docs/upload-protocol.md is its contract."""

from __future__ import annotations

from ninja import NinjaAPI

api = NinjaAPI(title="Stepscope", version="1", urls_namespace="api", docs_url="/docs")
