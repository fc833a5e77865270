"""The JSON API, described by OpenAPI at /api/docs. docs/upload-protocol.md is its contract."""

from __future__ import annotations

import json
import logging
from typing import Any, NoReturn

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.shortcuts import render
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.docs import DocsBase
from ninja.parser import Parser

from dashboard.ingest.apidocs import described
from dashboard.ingest.auth import identify
from dashboard.ingest.bodies import check_body
from dashboard.ingest.errors import ApiError, add_headers, byte_text, error_response

logger = logging.getLogger(__name__)


class StrictParser(Parser):
    """JSON that PostgreSQL can hold: objects of finite numbers and of text without NUL or half surrogates."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        try:
            body = json.loads(request.body, parse_constant=_refuse_constant)
        except RecursionError as error:
            raise ApiError(400, "bad_request", "the JSON is nested too deep") from error
        except ValueError as error:
            raise ApiError(400, "bad_request", f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise ApiError(400, "bad_request", "the body is not a JSON object")
        check_body(body)
        return body


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; send null for what is unknown")


class PlainDocs(DocsBase):
    """One page made on the server: works without a network and under the strict Content-Security-Policy."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **kwargs: Any) -> HttpResponse:
        return render(request, "ingest/docs.html", described(api.get_openapi_schema()))


class StepscopeAPI(NinjaAPI):
    def create_response(self, *args: Any, **kwargs: Any) -> HttpResponse:
        response = super().create_response(*args, **kwargs)
        add_headers(response)
        return response


api = StepscopeAPI(
    title="Stepscope",
    version="1",
    description="Runs, captures, dumps and step records. Send `Authorization: Bearer TOKEN`, or the session cookie.",
    urls_namespace="api",
    docs_url="/docs",
    docs=PlainDocs(),
    parser=StrictParser(),
    auth=identify,
)
api.add_router("/v1", "dashboard.ingest.api_upload.router", tags=["upload"])
api.add_router("/v1", "dashboard.ingest.api_read.router", tags=["read"])


@api.exception_handler(ApiError)
def _refused(request: HttpRequest, error: ApiError) -> HttpResponse:
    return error_response(error)


@api.exception_handler(AuthenticationError)
def _unknown_caller(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return error_response(ApiError(401, "bad_token", "send `Authorization: Bearer TOKEN` with a live token"))


@api.exception_handler(Http404)
def _not_found(request: HttpRequest, error: Http404) -> HttpResponse:
    return error_response(ApiError(404, "not_found", "there is nothing at this address"))


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    first = error.errors[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    return error_response(ApiError(400, "bad_request", f"{place or 'body'}: {first['msg']}"))


@api.exception_handler(RequestDataTooBig)
def _too_large(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    message = f"the request is larger than {byte_text(limit)}; send it in parts"
    return error_response(ApiError(413, "body_too_large", message, limit=limit))


@api.exception_handler(UnreadablePostError)
def _cut(request: HttpRequest, error: UnreadablePostError) -> HttpResponse:
    return error_response(ApiError(400, "bad_request", "the request ended before its body did"))


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    # What the parser refused comes wrapped in a message that does not say why.
    if isinstance(error.__cause__, ApiError):
        return error_response(error.__cause__)
    return error_response(ApiError(error.status_code, "bad_request", str(error)))


@api.exception_handler(Exception)
def _unforeseen(request: HttpRequest, error: Exception) -> HttpResponse:
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    return error_response(
        ApiError(500, "internal", "the server failed on this call and has logged why; try again later")
    )
