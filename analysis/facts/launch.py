"""Whether kernels were launched as graphs or one by one, told from their names and model ids."""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.words import mapped

NO_MODEL = 4294967295
_MOST = 0.5
_NEARLY_ALL = 0.9


def facts(kernels: pl.DataFrame, framework: str | None) -> dict[str, Any]:
    """`mode` "graph" or "pynative" with `why`, null when nothing tells; `sink` True when graphs run on the device."""
    compute = pl.col("kind") == "compute"
    modelled = pl.col("model_id").is_not_null() & (pl.col("model_id") != NO_MODEL)
    scoped = _named(kernels, r"(?:Default|Gradients)/.*-op\d")
    single = _named(kernels, r"aclnn|PyNativeLaunchTask|LaunchTask")
    counts = kernels.select(
        all=compute.sum(),
        scoped=(compute & scoped).sum(),
        aclnn=(compute & single).sum(),
        modelled=(compute & modelled).sum(),
    ).row(0, named=True)
    shares = {key: counts[key] / max(1, counts["all"]) for key in ("scoped", "aclnn", "modelled")}
    mode, sink, why = _inferred(shares["scoped"], shares["aclnn"], shares["modelled"], framework)
    return {
        "mode": mode,
        "sink": sink,
        "why": why,
        **{f"{key}_ratio": round(value, 4) for key, value in shares.items()},
    }


def _named(kernels: pl.DataFrame, pattern: str) -> pl.Series:
    return mapped(kernels["name"], lambda names: names.str.contains(pattern).fill_null(False))


def _inferred(
    scoped: float, aclnn: float, modelled: float, framework: str | None
) -> tuple[str | None, bool | None, str | None]:
    if modelled >= _NEARLY_ALL:
        return "graph", True, "kernels belong to a graph loaded on the device (model id)"
    if scoped >= _MOST:
        return "graph", None, "kernel names carry scopes of a compiled graph"
    if aclnn >= _MOST:
        return "pynative", None, "kernels are launched one by one (aclnn names, no graph model id)"
    if framework == "torch_npu" and modelled == 0:
        return "pynative", None, "torch_npu launches kernels one by one (no graph model id)"
    return None, None, None
