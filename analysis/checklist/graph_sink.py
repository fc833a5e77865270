"""Item 2: graph mode and sink are on; the device works in more than 85 % of the step.

torch_npu launches kernels one by one as its normal way and has no sink: there the device ratio alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.checklist.evidence import Evidence, Item, Status, Text, facts_of
from analysis.entries import Json, device_ratio, free_us, mean, step_time_us
from analysis.thresholds import limit

_ADVICE = Text(
    "Run in graph mode with data sink (context mode 0, runner_config.sink_mode True, jit_level O1 or O2) "
    "so that the host "
    "launches whole graphs; where the model must stay PyNative, jit the layers and bind processes to cores.",
    "使用图模式并开启下沉（context mode 为 0，runner_config.sink_mode 为 True，jit_level 为 O1 或 O2），"
    "由主机整图下发；"
    "若必须使用 PyNative，请对各层使用 jit 并为进程绑核。",
)
_ADVICE_TORCH = Text(
    "Let the host run ahead: TASK_QUEUE_ENABLE=2, processes bound to cores (CPU_AFFINITY_CONF), no .item(), .cpu() or "
    "printed tensor inside the step, fused operators and a fused optimizer in place of many small kernels; "
    "torch.compile where the model allows it.",
    "让主机领先于设备：设置 TASK_QUEUE_ENABLE=2，为进程绑核（CPU_AFFINITY_CONF），步内避免 .item()、.cpu() 与打印张量，"
    "用融合算子与融合优化器代替大量小算子；模型允许时使用 torch.compile。",
)


class _Launch(NamedTuple):
    mode: str | None
    sink: bool | None
    source: str
    why: str | None


def check(evidence: Evidence) -> Item:
    """Fails on wrong mode, no sink or too much free time; unknown when one of them is unknown and none fails."""
    ratio = device_ratio(evidence.ranks)
    launch = _launch(evidence)
    found = _evidence(evidence, launch)
    if ratio is None:
        return Item("graph_sink", "unknown", *_no_step_time(), None, limit("device_ratio"), found)
    faults = _faults(launch, ratio, by_mode=not evidence.of_torch)
    summary = _summary(launch, ratio, of_torch=evidence.of_torch)
    recoverable = _recoverable(evidence.ranks)
    advice = evidence.advice(_ADVICE, _ADVICE_TORCH)
    if not evidence.of_torch and not faults and (launch.mode is None or launch.sink is None):
        return Item("graph_sink", "unknown", summary, _SUPPLY, ratio, limit("device_ratio"), found, recoverable)
    status: Status = "fail" if faults else "pass"
    found += [{"kind": "fault", "text": fault} for fault in faults]
    return Item("graph_sink", status, summary, advice, ratio, limit("device_ratio"), found, recoverable)


_TORCH_MODES: dict[str | None, tuple[str, str]] = {
    "pynative": ("eager", "逐算子下发（eager）"),
    "graph": ("compiled graphs", "编译图"),
}
_SUPPLY = Text(
    "Send run metadata (the training callback writes mode, jit_level and sink) or attach the run's YAML.",
    "请上传运行元数据（训练回调会写入 mode、jit_level、sink），或附上运行的 YAML 配置。",
)


def _summary(launch: _Launch, ratio: float, *, of_torch: bool) -> Text:
    works = Text(f"The device works in {ratio:.1%} of the step", f"设备工作时间占单步的 {ratio:.1%}")
    if of_torch:
        mode, mode_zh = _TORCH_MODES.get(launch.mode, ("mode unknown", "模式未知"))
        return Text(f"{works.en}; torch_npu, {mode}.", f"{works.zh}；torch_npu，{mode_zh}。")
    return Text(
        f"{works.en}; mode {launch.mode or 'unknown'}, sink {_on(launch.sink, 'on', 'off', 'unknown')}.",
        f"{works.zh}；模式 {launch.mode or '未知'}，下沉{_on(launch.sink, '开启', '关闭', '未知')}。",
    )


def _no_step_time() -> tuple[Text, Text]:
    return (
        Text(
            "How much of the step is free is not known, so neither is the device ratio.",
            "单步中的空闲时间未知，无法得到设备利用占比。",
        ),
        Text(
            "Profile with a schedule at Level0 or higher so that step_trace_time.csv is written.",
            "请使用 schedule 并以 Level0 及以上采集，以生成 step_trace_time.csv。",
        ),
    )


def _on(value: bool | None, yes: str, no: str, unknown: str) -> str:
    return unknown if value is None else yes if value else no


def _launch(evidence: Evidence) -> _Launch:
    """Mode and sink from run metadata, else the config, else inferred from kernel names."""
    known: list[tuple[str | None, bool | None, str, str | None]] = [
        (evidence.run.get("mode"), evidence.run.get("sink"), "run metadata", None)
    ]
    if evidence.config is not None:
        known.append((evidence.config.mode, evidence.config.sink, "config", None))
    for _, facts in facts_of(evidence.ranks, "launch"):
        known.append((facts.get("mode"), facts.get("sink"), "inferred", facts.get("why")))
    modes = [row for row in known if row[0]]
    sinks = [row[1] for row in known if row[1] is not None]
    mode, _, source, why = modes[0] if modes else (None, None, "nothing", None)
    return _Launch(str(mode).lower() if mode else None, sinks[0] if sinks else None, source, why)


def _faults(launch: _Launch, ratio: float, *, by_mode: bool) -> list[str]:
    faults = []
    if by_mode and launch.mode is not None and launch.mode != "graph":
        faults.append(f"mode is {launch.mode}")
    if by_mode and launch.sink is False:
        faults.append("sink is off")
    if ratio <= limit("device_ratio"):
        faults.append(f"device ratio {ratio:.1%} is not above {limit('device_ratio'):.0%}")
    return faults


def _evidence(evidence: Evidence, launch: _Launch) -> list[Json]:
    found: list[Json] = [
        {
            "kind": "launch",
            "mode": launch.mode,
            "sink": launch.sink,
            "jit_level": evidence.run.get("jit_level") or (evidence.config.jit_level if evidence.config else None),
            "source": launch.source,
            "text": launch.why,
        }
    ]
    ratios = [(entry, device_ratio([entry])) for entry in evidence.ranks]
    known = sorted(((ratio, entry.get("rank")) for entry, ratio in ratios if ratio is not None), key=lambda row: row[0])
    found += [{"kind": "rank", "rank": rank, "device_ratio": ratio} for ratio, rank in known[:4]]
    return found


def _recoverable(ranks: Sequence[Json]) -> float | None:
    """Free time above 10 % of the step, mean over ranks."""
    excess = []
    for entry in ranks:
        free, step = free_us([entry]), step_time_us(entry)
        if free is not None and step is not None:
            excess.append(max(0.0, free - limit("free_ratio") * step))
    return mean(excess)
