"""Item 8: with fixed data and fixed steps, loss and gradient norm follow the reference run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from analysis.checklist.evidence import Evidence, Item, Status, Text
from analysis.entries import Json, number
from analysis.thresholds import limit

_ADVICE = Text(
    "Fix seed, data order and dropout, compare the first step that differs, then layer outputs at that "
    "step; a drift with equal "
    "first steps points at optimizer, loss scale or accumulation dtype.",
    "固定随机种子、数据顺序并关闭 dropout，比对第一个出现差异的步，再比对该步的逐层输出；若前几步一致而后漂移，"
    "请检查优化器、loss scale 与累加数据类型。",
)
_SUPPLY = Text(
    "Name a reference run in the project and send the step series of both runs (log or callback), at "
    "least 100 common steps.",
    "请在项目中指定参考运行，并上传两次运行的步序列（日志或回调），至少 100 个共同步。",
)


class _Difference(NamedTuple):
    steps: int
    mean: float
    drift: float
    worst_step: int
    worst: float


def check(evidence: Evidence) -> Item:
    """Value: mean relative loss difference over the common steps."""
    if not evidence.series or not evidence.reference:
        what = ("No step series of this run.", "缺少本次运行的步序列。")
        what = what if not evidence.series else ("No reference run to compare with.", "没有可比对的参考运行。")
        return Item("precision_regression", "unknown", Text(*what), _SUPPLY, None, limit("loss_relative_difference"))
    loss = difference(evidence.series, evidence.reference, "loss")
    norm = difference(evidence.series, evidence.reference, "global_norm")
    if loss is None or loss.steps < limit("precision_steps"):
        common = loss.steps if loss else 0
        short = Text(f"Only {common} steps are common with the reference.", f"与参考运行仅有 {common} 个共同步。")
        return Item(
            "precision_regression",
            "unknown",
            short,
            _SUPPLY,
            loss.mean if loss else None,
            limit("loss_relative_difference"),
        )
    faults = _faults(loss, norm)
    summary = Text(
        f"Loss differs by {loss.mean:.2%} on average over {loss.steps} steps, drift {loss.drift:+.2%}.",
        f"{loss.steps} 步内损失平均相对差 {loss.mean:.2%}，漂移 {loss.drift:+.2%}。",
    )
    found: list[Json] = [{"kind": "loss", **loss._asdict()}]
    if norm is not None:
        found.append({"kind": "global_norm", **norm._asdict()})
    found += [{"kind": "fault", "text": fault} for fault in faults]
    status: Status = "fail" if faults else "pass"
    return Item("precision_regression", status, summary, _ADVICE, loss.mean, limit("loss_relative_difference"), found)


def difference(series: Sequence[Json], reference: Sequence[Json], key: str) -> _Difference | None:
    """Relative difference |a - b| / |b| at common steps, and its drift: mean of second half less that of the first."""
    theirs = {step["step"]: number(step, key) for step in reference if step.get("step") is not None}
    pairs = [
        (step["step"], number(step, key), theirs.get(step["step"])) for step in series if step.get("step") in theirs
    ]
    known = sorted((step, abs(a - b) / abs(b)) for step, a, b in pairs if a is not None and b)
    if not known:
        return None
    values = [value for _, value in known]
    half = len(values) // 2
    drift = mean(values[half:]) - mean(values[:half]) if half else 0.0
    worst_step, worst = max(known, key=lambda pair: pair[1])
    return _Difference(len(values), mean(values), drift, worst_step, worst)


def _faults(loss: _Difference, norm: _Difference | None) -> list[str]:
    faults = []
    if not loss.mean <= limit("loss_relative_difference"):
        faults.append(f"mean relative loss difference {loss.mean:.2%} is over {limit('loss_relative_difference'):.0%}")
    if not loss.drift <= limit("loss_drift"):
        faults.append(f"the difference grows by {loss.drift:.2%}")
    if norm is not None and not norm.mean <= limit("norm_relative_difference"):
        faults.append(f"mean relative norm difference {norm.mean:.2%} is over {limit('norm_relative_difference'):.0%}")
    return faults
