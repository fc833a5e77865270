"""Files of one chapter: dump folders, run config and training log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from analysis.synthetic import Truth, write_capture
from analysis.synthetic.log import COMPILE_MS, config_text, write_log
from dashboard.demo.story import FIRST_STEP, LOG_STEPS, SOC, Chapter

COMMAND = "msrun --worker_num={cards} run_mindformer.py --config {config} --use_parallel True"


class ChapterFiles(NamedTuple):
    dumps: Path
    config: Path
    log: Path
    truths: list[Truth]


def write_chapter(folder: Path, chapter: Chapter) -> ChapterFiles:
    """Everything the agent sends of that run, the same bytes each time."""
    spec = chapter.spec
    config, log, dumps = folder / f"run_{chapter.model}.yaml", folder / "worker_0.log", folder / "profile"
    config.write_text(config_text(spec, chapter.model), encoding="utf-8")
    truths = write_capture(
        dumps,
        spec,
        ranks=chapter.ranks,
        steps=chapter.steps,
        slow=chapter.slow,
        first_step=FIRST_STEP,
        header="mindspore_2.7",
        at=chapter.at,
        versions={"framework": chapter.mindspore, "cann": chapter.cann},
        run=_run(chapter, config.name),
    )
    step_ms = truths[0].steps[0].step_ns / 1e6
    started = chapter.at - timedelta(milliseconds=COMPILE_MS[spec.mode] + step_ms * (FIRST_STEP - 2))
    window = (FIRST_STEP, FIRST_STEP + chapter.steps - 1)
    write_log(log, spec, steps=LOG_STEPS, step_ms=step_ms, at=started, profiled=window, seed=chapter.day)
    return ChapterFiles(dumps, config, log, truths)


def _run(chapter: Chapter, config: str) -> dict[str, Any]:
    command = COMMAND.format(cards=chapter.spec.world_size, config=config)
    run: dict[str, Any] = {
        "soc": SOC,
        "model": {"name": chapter.model},
        "command": command,
        "git_commit": chapter.commit,
    }
    return {**run, "alignment": _alignment(chapter)} if chapter.aligned else run


def _alignment(chapter: Chapter) -> dict[str, Any]:
    """A comparison of every layer's output with the source framework's, errors growing a little with depth."""
    layers = [
        {"name": f"model.layers.{i}", "cosine": round(0.99999 - 4e-6 * i, 6), "max_relative_error": 8e-4 + 1e-5 * i}
        for i in range(chapter.spec.layers)
    ]
    return {"tool": "stepscope", "compared": len(layers), "differing": 0, "layers": layers}
