"""The one shape in which the API refuses something."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse

PROTOCOL = "1"


class ApiError(Exception):
    """Answered as {"error": {"code", "message", ...detail}}; `beside` stands next to `error`."""

    def __init__(
        self, status: int, code: str, message: str, *, beside: dict[str, Any] | None = None, **detail: Any
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.detail, self.beside = detail, beside or {}

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, **self.detail}, **self.beside}


class NotFound(ApiError):
    """Things of other projects look exactly like things that do not exist."""

    def __init__(self, what: str) -> None:
        super().__init__(404, "not_found", f"there is no such {what} in the projects you can reach")


def error_response(error: ApiError) -> JsonResponse:
    response = JsonResponse(error.body(), status=error.status)
    add_headers(response)
    if error.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    if "retry_after" in error.detail:
        response["Retry-After"] = str(error.detail["retry_after"])
    return response


def add_headers(response: HttpResponseBase) -> None:
    response["Stepscope-Protocol"] = PROTOCOL


def check_protocol(request: HttpRequest) -> None:
    asked = request.headers.get("Stepscope-Protocol", PROTOCOL).strip()
    if asked != PROTOCOL:
        message = f"protocol version {asked[:20]} is not spoken here; this server speaks {PROTOCOL}"
        raise ApiError(426, "protocol", message, versions=[int(PROTOCOL)])


def byte_text(size: int) -> str:
    """A size for people: 9.1 GB."""
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"
