"""The Model Context Protocol as far as tools need it: JSON-RPC 2.0, a message a request, nothing kept between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from pydantic import ValidationError

from dashboard.ingest.auth import Caller
from dashboard.ingest.errors import ApiError
from dashboard.mcp.tools import TOOLS

VERSIONS = ("2025-06-18", "2025-03-26")
"""Newest first; a client that asks for another is answered with the newest and may leave."""
PARSE, INVALID, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INSTRUCTIONS = (
    "Stepscope keeps profiles of training runs on Ascend NPUs. Start with list_runs, then get_run and get_capture; "
    "get_section holds the details of one rank, compare what changed between captures. null means unknown, never 0. "
    "Times are in microseconds unless a name says otherwise; ratios are 0 to 1."
)


class RpcError(Exception):
    """A message that is not one this server can answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def answer(caller: Caller, message: Any) -> dict[str, Any] | None:
    """The reply to one message; None for a notification or an answer, which get none."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return failure(None, INVALID, "not a JSON-RPC 2.0 message")
    if "id" not in message or "method" not in message:
        return None
    number = message["id"]
    if not isinstance(number, (str, int)) or isinstance(number, bool):
        return failure(None, INVALID, "id is neither a number nor text")
    try:
        return {"jsonrpc": "2.0", "id": number, "result": _result(caller, message)}
    except RpcError as error:
        return failure(number, error.code, error.message)


def failure(number: str | int | None, code: int, message: str) -> dict[str, Any]:
    """An error reply."""
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _result(caller: Caller, message: Mapping[str, Any]) -> dict[str, Any]:
    method, params = message["method"], message.get("params") or {}
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params is not an object")
    if method == "initialize":
        return _greeting(params)
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [tool.described() for tool in TOOLS.values()]}
    if method == "tools/call":
        return _called(caller, params)
    raise RpcError(UNKNOWN_METHOD, f"there is no method {str(method)[:100]}")


def _greeting(params: Mapping[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "stepscope", "title": "Stepscope", "version": "1"},
        "instructions": INSTRUCTIONS,
    }


def _called(caller: Caller, params: Mapping[str, Any]) -> dict[str, Any]:
    tool = TOOLS.get(str(params.get("name")))
    if tool is None:
        raise RpcError(INVALID_PARAMS, f"there is no tool {str(params.get('name'))[:100]}")
    try:
        arguments = tool.arguments.model_validate(params.get("arguments") or {})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "arguments"
        return _content(f"{place}: {first['msg']}", failed=True)
    try:
        found = tool.run(caller, arguments)
    except ApiError as error:
        return _content(error.message, failed=True)
    return _content(json.dumps(found, cls=DjangoJSONEncoder, ensure_ascii=False))


def _content(text: str, *, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}
