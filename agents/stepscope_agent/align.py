"""Compares the layer outputs of two recordings (`layers.py`) and tells the first layer that differs."""

from __future__ import annotations

import base64
import math
import os
import re
from array import array
from operator import mul
from typing import Any, NamedTuple, Sequence

from stepscope_agent.discover import read_json
from stepscope_agent.errors import AgentError
from stepscope_agent.layers import SCHEMA
from stepscope_agent.manifest import write_json

EVIDENCE = "stepscope_alignment.json"
MOST_ROWS = 50
TOLERANCES = {"float64": 1e-4, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
"""Largest |a - b| / |b| over an output's values by the coarser data type of the two: what other orders of summing and
other kernels give at that precision, with room for some tens of layers."""
_WRAPPERS = re.compile(r"^(?:(?:module|network|_backbone|backbone|model|transformer)\.)+")
_SAME_LAYER = (  # Hugging Face's names of a Llama -> those of MindSpore Transformers
    (re.compile(r"\bself_attn\b"), "attention"),
    (re.compile(r"\bq_proj\b"), "wq"),
    (re.compile(r"\bk_proj\b"), "wk"),
    (re.compile(r"\bv_proj\b"), "wv"),
    (re.compile(r"\bo_proj\b"), "wo"),
    (re.compile(r"\bmlp\b"), "feed_forward"),
    (re.compile(r"\bgate_proj\b"), "w1"),
    (re.compile(r"\bdown_proj\b"), "w2"),
    (re.compile(r"\bup_proj\b"), "w3"),
    (re.compile(r"\binput_layernorm\b"), "attention_norm"),
    (re.compile(r"\bpost_attention_layernorm\b"), "ffn_norm"),
    (re.compile(r"\bembed_tokens\b"), "tok_embeddings"),
    (re.compile(r"^norm\b"), "norm_out"),
)


class Recording(NamedTuple):
    path: str
    framework: str
    layers: list[dict[str, Any]]


def read_recording(path: str) -> Recording:
    """Raises AgentError for anything but a recording."""
    if not os.path.isfile(path):
        raise AgentError("%s is not there" % path)
    told = read_json(path)
    layers = told.get("layers")
    if told.get("schema") != SCHEMA or not isinstance(layers, list) or not layers:
        raise AgentError("%s is not a recording of layer outputs (record_mindspore, record_torch)" % path)
    whole = all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in layers)
    if not whole:
        raise AgentError("%s holds a layer without a name" % path)
    return Recording(path, str(told.get("framework") or "unknown"), layers)


def align(
    ours: Recording, theirs: Recording, renames: Sequence[tuple[str, str]] = (), tolerance: float | None = None
) -> dict[str, Any]:
    """The evidence that the checklist reads: each output in the order it was made in `ours`, differing ones first.

    `renames`: (regular expression, replacement) for the names of `theirs`. Raises AgentError when nothing is common.
    """
    pairs = _pairs(ours, theirs, renames)
    rows = [_compared(row, other, ours, theirs, tolerance) for row, other in pairs]
    bad = [row for row in rows if not row["aligned"]]
    return {
        "schema": SCHEMA,
        "tool": "stepscope-agent align",
        "file": "%s against %s" % (os.path.basename(ours.path), os.path.basename(theirs.path)),
        "frameworks": [ours.framework, theirs.framework],
        "compared": len(rows),
        "differing": len(bad),
        "left_out": len(ours.layers) + len(theirs.layers) - 2 * len(rows),
        "first": bad[0]["name"] if bad else None,
        "layers": (bad + [row for row in rows if row["aligned"]])[:MOST_ROWS],
    }


def write_evidence(evidence: dict[str, Any], path: str) -> None:
    try:
        write_json(path, evidence)
    except OSError as exc:
        raise AgentError("cannot write %s: %s" % (path, exc.strerror)) from exc


def read_evidence(path: str) -> dict[str, Any] | None:
    """What `align` wrote; None for anything else."""
    told = read_json(path)
    return told if told.get("schema") == SCHEMA and isinstance(told.get("layers"), list) else None


def _pairs(
    ours: Recording, theirs: Recording, renames: Sequence[tuple[str, str]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    by_name = {_plain(_renamed(row["name"], renames)): row for row in theirs.layers}
    pairs = [(row, by_name[_plain(row["name"])]) for row in ours.layers if _plain(row["name"]) in by_name]
    if any(row["name"] != "output" for row, _ in pairs):
        return pairs
    if [row.get("shape") for row in ours.layers] == [row.get("shape") for row in theirs.layers]:
        return list(zip(ours.layers, theirs.layers))
    raise AgentError(
        "no layer of %s has a name of %s: give --rename OLD=NEW. Names here: %s; there: %s"
        % (ours.path, theirs.path, _some_names(ours), _some_names(theirs))
    )


def _renamed(name: str, renames: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


def _plain(name: str) -> str:
    name = _WRAPPERS.sub("", name)
    for pattern, replacement in _SAME_LAYER:
        name = pattern.sub(replacement, name)
    return name


def _some_names(recording: Recording) -> str:
    return ", ".join(row["name"] for row in recording.layers[:5])


def _compared(
    row: dict[str, Any], other: dict[str, Any], ours: Recording, theirs: Recording, tolerance: float | None
) -> dict[str, Any]:
    told: dict[str, Any] = {"name": row["name"], "reference": other["name"], "shape": row.get("shape")}
    if row.get("count") != other.get("count"):
        return {**told, "reference_shape": other.get("shape"), "aligned": False}
    whole = all(isinstance(one.get("file"), str) for one in (row, other))
    left, right = _values(row, ours, whole), _values(other, theirs, whole)
    if len(left) != len(right):
        raise AgentError("%s and %s keep %s at different places" % (ours.path, theirs.path, row["name"]))
    limit = tolerance if tolerance is not None else max(_tolerance(row), _tolerance(other))
    numbers = _errors(left, right)
    error = numbers["relative_error"]
    known = {name: value for name, value in numbers.items() if value is not None}
    return {**told, **known, "tolerance": limit, "aligned": error is not None and error <= limit}


def _tolerance(row: dict[str, Any]) -> float:
    return TOLERANCES.get(str(row.get("dtype")), TOLERANCES["float32"])


def _values(row: dict[str, Any], recording: Recording, whole: bool) -> array[float]:
    """The values at the fixed places, or all of them."""
    values = array("f")
    try:
        if whole:
            with open(os.path.join(recording.path + ".tensors", os.path.basename(row["file"])), "rb") as stream:
                values.frombytes(stream.read())
        else:
            values.frombytes(base64.b64decode(str(row.get("sample") or ""), validate=True))
    except OSError as exc:
        raise AgentError("%s: the values of %s cannot be read: %s" % (recording.path, row["name"], exc)) from exc
    except ValueError as exc:
        raise AgentError("%s: the values of %s are damaged" % (recording.path, row["name"])) from exc
    return values


def _errors(left: array[float], right: array[float]) -> dict[str, float | None]:
    """Cosine, largest absolute error, and |a - b| / |b|; null where a value is not finite."""
    gaps = array("f", map(float.__sub__, left, right))
    ours, theirs, gap = _norm(left), _norm(right), _norm(gaps)
    if not all(map(math.isfinite, (ours, theirs, gap))):
        return {"cosine": None, "max_absolute_error": None, "relative_error": None}
    product = sum(map(mul, left, right))
    return {
        "cosine": round(product / (ours * theirs), 9) if ours and theirs else (1.0 if ours == theirs else 0.0),
        "max_absolute_error": max(map(abs, gaps), default=0.0),
        "relative_error": gap / theirs if theirs else (0.0 if not gap else None),
    }


def _norm(values: array[float]) -> float:
    return math.sqrt(sum(map(mul, values, values)))
