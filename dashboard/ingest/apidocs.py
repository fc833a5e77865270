"""An OpenAPI document as plain rows for the page at /api/docs."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def described(schema: Json) -> Json:
    """`calls` in order of their address and `schemas` by name."""
    calls = [
        _call(method, path, operation)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    return {"calls": calls, "schemas": [_schema(name, body) for name, body in schema["components"]["schemas"].items()]}


def _call(method: str, path: str, operation: Json) -> Json:
    content = (operation.get("requestBody") or {}).get("content", {}).get("application/json", {})
    body = _type(content.get("schema", {})) if content else ""
    return {
        **operation,
        "method": method.upper(),
        "path": path,
        "body_name": body,
        "statuses": list(operation["responses"]),
    }


def _schema(name: str, body: Json) -> Json:
    required = body.get("required", [])
    rows = [
        {"name": key, "type": _type(value), "required": key in required}
        for key, value in body.get("properties", {}).items()
    ]
    return {"name": name, "description": body.get("description", ""), "rows": rows}


def _type(value: Json) -> str:
    if "$ref" in value:
        return str(value["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in value:
        return " or ".join(_type(option) for option in value["anyOf"])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    return str(value.get("type", "any"))
