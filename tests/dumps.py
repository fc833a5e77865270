"""Synthetic dumps for tests, in the exact profiler formats: a thin layer over analysis.synthetic."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from analysis.synthetic import GptSpec, Truth, write_capture, write_rank

SPEC_FIELDS = {field.name for field in fields(GptSpec)}
OUTPUT = "ASCEND_PROFILER_OUTPUT"


def small_spec(**changes: Any) -> GptSpec:
    """Two layers, a hundred or two kernels a step."""
    sizes: dict[str, Any] = {"layers": 2, "hidden": 512, "heads": 4, "kv_heads": 4, "head_dim": 128, "ffn": 1408}
    return GptSpec(**{**sizes, "vocab": 4096, "seq": 2048, **changes})


def write_dump(path: Path, rank: int = 0, steps: int = 2, **knobs: Any) -> Truth:
    """One rank's dump in a folder under `path`; `knobs` are fields of GptSpec or options of write_rank.

    The folder is `truth.folder`; it is named rank_N_ascend_ms or rank_N_ascend_pt.
    """
    spec, options = _split(knobs)
    framework = options.get("framework") or ("torch_npu" if spec.mode == "torch" else "mindspore")
    suffix = "pt" if framework == "torch_npu" else "ms"
    return write_rank(path / f"rank_{rank}_ascend_{suffix}", spec, rank, steps, **options)


def write_job(path: Path, steps: int = 2, **knobs: Any) -> list[Truth]:
    """Dumps of all ranks of a job under `path`, with collectives that begin and end as they would."""
    spec, options = _split(knobs)
    return write_capture(path, spec, steps=steps, **options)


def _split(knobs: dict[str, Any]) -> tuple[GptSpec, dict[str, Any]]:
    spec = small_spec(**{key: value for key, value in knobs.items() if key in SPEC_FIELDS})
    return spec, {key: value for key, value in knobs.items() if key not in SPEC_FIELDS}


def dump_files(folder: Path) -> dict[str, Path]:
    """Files of a dump by the label a manifest gives them."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def zipped(folder: Path, target: Path) -> Path:
    """The dump folder as a .zip that holds the folder itself."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for label, path in dump_files(folder).items():
            archive.write(path, f"{folder.name}/{label}")
    return target


def tarred(folder: Path, target: Path) -> Path:
    """The dump folder as a .tar.gz that holds the folder itself."""
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    return target


def without(folder: Path, *labels: str) -> Path:
    """Remove files of a dump, as when a profiler did not write them."""
    for label in labels:
        path = folder / label
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    """Change top-level keys of a JSON file; None removes a key."""
    value = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: v for key, v in value.items() if v is not None}), encoding="utf-8")
