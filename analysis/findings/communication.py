"""Findings about communication and about ranks that wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.checklist.evidence import Text
from analysis.entries import Json, exposed_us, judged_steps, mean, number, rows, step_count
from analysis.findings.view import Finding, View, collectives_of, ms, severity
from analysis.thresholds import limit

_SDMA = ("SDMA", "HCCS", "SIO")


def exposed_communication(view: View) -> Finding | None:
    """Communication that no compute hides, pipeline bubble left out. Only what overlap could hide is recoverable."""
    us = mean(exposed_us(step) for entry in view.ranks for step in judged_steps(entry))
    if us is None or view.share(us) < limit("communication"):
        return None
    hideable = mean(hideable_us(entry) for entry in view.ranks)
    gain = None if hideable is None else min(us, hideable)
    told, told_zh = ("", "") if gain is None else (
        f" By estimate {ms(gain)} of it could run beside compute.", f"据估算其中 {ms(gain)} 可与计算重叠。"
    )  # fmt: skip
    if longest := next((words for entry in view.ranks if (words := _longest(entry, us / 2))), None):
        told, told_zh = longest[0] + told, longest[1] + told_zh
    still = mean(_still_ratio(entry) for entry in view.ranks)
    waits = min(us * (still or 0.0), mean(_still_a_step_us(entry) for entry in view.ranks) or 0.0)
    if still is not None and waits >= limit("still_ratio") * us:
        told += f" In collectives no byte moves {still:.0%} of the time: up to {ms(waits)} are waiting."
        told_zh += f"集合通信中有 {still:.0%} 的时间没有数据传输：至多 {ms(waits)} 为等待。"
        gain = max(gain or 0.0, waits)
    ops = sorted(
        ({"rank": e.get("rank"), **row} for e in view.ranks[:1] for row in rows(e, "facts", "exposed")),
        key=lambda row: -(number(row, "exposed_us") or 0.0),
    ) or [{"rank": e.get("rank"), **row} for e in view.ranks[:1] for row in rows(e, "communication")]
    return Finding(
        "exposed_communication",
        Text(
            f"{view.share(us):.0%} of the step is communication that no compute hides, {ms(us)}.{told}",
            f"未被计算掩盖的通信占单步的 {view.share(us):.0%}，共 {ms(us)}。{told_zh}",
        ),
        Text(
            "Overlap gradient and weight exchange with compute (gradient buckets, parallel optimizer "
            "prefetch), use sequence parallel with TP, and look first for ranks that come late, captured or not: "
            "waiting for them, and for a host that launches late, is counted here. A long broadcast waits for the rank "
            "that reads the data.",
            "将梯度与权重通信与计算重叠（梯度分桶、优化器并行预取），与 TP 一起使用序列并行；先排查到达晚的卡"
            "（可能不在本次采集中）：等待它们和等待主机下发的时间也计入此处。"
            "耗时很长的 broadcast 通常在等待读取数据的卡。",
        ),
        ops,
        gain,
        severity(us, view.step_us),
    )


def _still_ratio(entry: Json) -> float | None:
    """Share of the time inside a rank's collectives in which, at least, no byte moves: what is not transit, or where
    that is not told what the tool calls wait; null without collectives."""
    found = [row for row in rows(entry, "communication") if row.get("type") == "collective"]
    elapse = sum(number(row, "elapse_us") or 0.0 for row in found)
    return sum(map(_still_us, found)) / elapse if elapse else None


def _still_a_step_us(entry: Json) -> float:
    found = [row for row in rows(entry, "communication") if row.get("type") == "collective"]
    return sum(map(_still_us, found)) / _steps_of_operations(entry)


def _steps_of_operations(entry: Json) -> int:
    """Steps that the sums over operations cover: all of the capture."""
    return max(1, len(rows(entry, "steps")))


def _still_us(row: Json) -> float:
    elapse, transit = number(row, "elapse_us"), number(row, "transit_us")
    if elapse is None or transit is None or not row.get("size_bytes"):
        return number(row, "wait_us") or 0.0
    return max(0.0, elapse - transit)


def _longest(entry: Json, least_us: float) -> tuple[str, str] | None:
    """Words about the operation that most of a rank's exposed communication is spent in, `least_us` a step or more."""
    exposed = [row for row in rows(entry, "facts", "exposed") if row.get("part") != "pipeline_transfers"]
    analysed = [row for row in rows(entry, "communication") if row.get("type") == "collective"]
    found = exposed or analysed or rows(entry, "facts", "collectives", "ops")
    steps = _steps_of_operations(entry) if found is analysed else step_count(entry)
    key = "exposed_us" if exposed else "elapse_us" if analysed else "total_us"
    times = [number(row, key) or 0.0 for row in found]
    if not times or max(times) < max(sum(times) / 2, least_us * steps):
        return None
    row, us = found[times.index(max(times))], max(times) / steps
    link, waited = row.get("link"), number(row, "wait_us")
    over = (f" over {link}", f"（{link}）") if link else ("", "")
    en, zh = f"{row.get('op')}{over[0]} takes {ms(us)} a step", f"{row.get('op')}{over[1] or ' '}每步 {ms(us)}"
    if waited and waited > max(times) / 2:
        en, zh = f"{en}, {ms(waited / steps)} of it waiting for others", f"{zh}，其中等待其他卡 {ms(waited / steps)}"
    return f" Most of it: {en}.", f"其中主要为 {zh}。"


def hideable_us(entry: Json) -> float | None:
    """By estimate, us a step of a rank's exposed communication that could run beside compute; null where its kernels
    have no place.

    Reducing gradients can run beside the backward pass of the last micro-batch, gathering weights beside the forward
    pass of the first, as far as those do not hide some already. Collectives inside layers, which the next kernel waits
    for, and transfers between stages are not counted.
    """
    found, layers = rows(entry, "facts", "exposed"), rows(entry, "layers", "parts")
    if not found or not layers:
        return None
    steps = step_count(entry)
    total = 0.0
    for gathers in (False, True):
        here = [r for r in found if r["part"] == "gradient_sync" and (r["op"] in ("allGather", "broadcast")) == gathers]
        exposed = sum(number(row, "exposed_us") or 0.0 for row in here) / steps
        hidden = sum(number(row, "total_us") or 0.0 for row in here) / steps - exposed
        total += min(exposed, max(0.0, _pass_us(layers, forward=gathers) - hidden))
    return total


def _pass_us(layers: list[Json], *, forward: bool) -> float:
    """Compute of one micro-batch's pass through the layers: the first one's forward, or the last one's backward."""
    passes = ("forward",) if forward else ("backward", "recompute")
    parts = [row for row in layers if row.get("part") == "layer" and row.get("pass") in passes]
    batches = [row["micro_batch"] for row in parts if row.get("micro_batch") is not None]
    wanted = (min(batches) if forward else max(batches)) if batches else None
    blocks = [block for row in parts if row.get("micro_batch") == wanted for block in rows(row, "blocks")]
    return sum(number(block, "total_us") or 0.0 for block in blocks if block.get("block") != "communication")


def slow_rank(view: View) -> Finding | None:
    """Ranks that the others wait for."""
    slow = rows(view.cluster, "slow_ranks")
    if not slow:
        return None
    worst = slow[0]
    names = ", ".join(str(row["rank"]) for row in slow[:5])
    of = f", last in {worst['votes']} of {worst['of']} collectives" if worst["of"] else ""
    of_zh = f"，在 {worst['of']} 次集合通信中 {worst['votes']} 次最后到达" if worst["of"] else ""
    us = float(worst["excess_us"])
    return Finding(
        "slow_rank",
        Text(
            f"The others wait for rank {names}{of}: {ms(us)} a step.",
            f"其他卡在等待 rank {names}{of_zh}：每步 {ms(us)}。",
        ),
        Text(
            "Compare that rank's kernels and free time with its peers: a slow device (clock, memory), "
            "uneven work, or a busy host.",
            "将该卡的算子与空闲时间与同组卡对比：可能是设备变慢（频率、显存）、负载不均或主机繁忙。",
        ),
        slow,
        us,
    )


def slow_link(view: View) -> Finding | None:
    """Links slower than others of their kind."""
    slow = rows(view.cluster, "slow_links")
    if not slow:
        return None
    worst = slow[0]
    pair, group = f"{worst['src']} -> {worst['dst']}", worst.get("within_group")
    where = (f" of group {group}, counted within it", f"（通信域 {group} 内的编号）") if group else ("", "")
    return Finding(
        "slow_link",
        Text(
            f"Link {pair}{where[0]} ({worst['link']}) runs at {worst['bandwidth_gbps']:g} of "
            f"{worst['typical_gbps']:g} GB/s.",
            f"链路 {pair}{where[1]}（{worst['link']}）带宽 {worst['bandwidth_gbps']:g} GB/s，同类为 "
            f"{worst['typical_gbps']:g} GB/s。",
        ),
        Text("Check cable, port and switch of that link.", "检查该链路的线缆、端口与交换机。"),
        slow,
        severity="medium",
    )


def compute_spread(view: View) -> Finding | None:
    """Ranks of one stage compute for different times."""
    spread = number(view.cluster, "compute_spread_ratio")
    if spread is None or spread <= limit("rank_spread") or len(rows(view.cluster, "stages")) > 1:
        return None
    return Finding(
        "compute_spread",
        Text(
            f"Compute time differs by {spread:.1%} of the step between ranks.",
            f"各卡计算时间之差达单步的 {spread:.1%}。",
        ),
        Text(
            "Balance the work: sequence lengths, experts, layers per rank.", "均衡各卡负载：序列长度、专家、每卡层数。"
        ),
        [{"compute_spread_ratio": spread}],
        severity="medium",
    )


def stage_imbalance(view: View) -> Finding | None:
    """Pipeline stages with different compute time: all wait for the longest one."""
    stages = rows(view.cluster, "stages")
    times = [float(row["computing_us"]) for row in stages]
    if len(times) < 2 or sum(times) <= 0:
        return None
    typical = sum(times) / len(times)
    spread = (max(times) - min(times)) / typical
    if spread <= limit("stage_imbalance"):
        return None
    slowest = max(stages, key=lambda row: float(row["computing_us"]))["stage"]
    us = max(times) - typical
    return Finding(
        "stage_imbalance",
        Text(
            f"Pipeline stages differ by {spread:.0%} in compute; stage {slowest} is the longest.",
            f"各流水级计算时间相差 {spread:.0%}，第 {slowest} 级最长。",
        ),
        Text(
            "Move layers between stages (offset), counting embedding and head.",
            "用 offset 在流水级之间调整层数，并计入嵌入层与输出层。",
        ),
        stages,
        us,
    )


def pipeline_bubble(view: View) -> Finding | None:
    """Waiting for other stages beyond what the schedule needs, or much of it where that is not known."""
    bubble = view.cluster["bubble"]
    measured, theory = number(bubble, "measured"), number(bubble, "theory")
    if measured is None or view.step_us is None:
        return None
    if measured < limit("communication") if theory is None else measured - theory <= limit("rank_spread"):
        return None
    needs = Text(
        "what the schedule alone needs is not known without stages and micro-batches",
        "未知流水级数与 micro-batch 数，无法给出调度理论值",
    )
    if theory is not None:
        needs = Text(f"the schedule alone needs {theory:.0%}", f"调度理论值为 {theory:.0%}")
    return Finding(
        "pipeline_bubble",
        Text(
            f"Waiting for other pipeline stages takes {measured:.0%} of the step; {needs.en}.",
            f"等待其他流水级占单步的 {measured:.0%}，{needs.zh}。",
        ),
        Text(
            "Balance the stages and look for slow ranks; more micro-batches or interleaving lower the theory.",
            "均衡各流水级并排查慢卡；增加 micro-batch 数或使用交错调度可降低理论值。",
        ),
        [dict(bubble)],
        None if theory is None else (measured - theory) * view.step_us,
        severity(measured * view.step_us, view.step_us) if theory is None else None,
    )


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def small_packets(view: View) -> Finding | None:
    """More than a fifth of the operations carry little."""
    for links, name in ((_SDMA, "sdma_small_bytes"), (("RDMA",), "rdma_small_bytes")):
        few = limit(name)
        here, small = _Sizes(), []
        for row in view.collectives:
            if (size := number(row, "size_bytes")) and row["link"] in links:
                here.add(size, number(row, "transit_us"))
                if size < few:
                    small.append(row)
        scalars = sum(row["size_bytes"] for row in small) < limit("volume_bytes")  # flags, norms: nothing to fuse
        if here.count and not scalars and len(small) / here.count > limit("small_packet_ratio"):
            return Finding(
                "small_packets",
                Text(
                    f"{len(small)} of {here.count} {links[0]} operations carry less than {few / 1e6:g} MB.",
                    f"{here.count} 次 {links[0]} 通信中有 {len(small)} 次小于 {few / 1e6:g} MB。",
                ),
                Text(
                    "Fuse small messages: larger gradient buckets, all-reduce fusion, larger micro-batches.",
                    "合并小包：增大梯度分桶、开启通信融合、增大 micro-batch。",
                ),
                small,
                _overhead_us(view, small, here.best),
            )
    return None


@dataclass
class _Sizes:
    """How many operations there are and the best bandwidth of them, in bytes a microsecond."""

    count: int = 0
    best: float = 0.0

    def add(self, size: float, transit_us: float | None) -> None:
        self.count += 1
        if transit_us:
            self.best = max(self.best, size / transit_us)


def _overhead_us(view: View, small: list[Json], best: float) -> float | None:
    """Transit time of the small ones beyond what their bytes need at the best bandwidth seen, per step and rank."""
    if not best or not view.ranks:
        return None
    extra = sum(row["transit_us"] - row["size_bytes"] / best for row in small if number(row, "transit_us"))
    return float(extra / len(view.ranks) / max(map(_steps_of_collectives, view.ranks)))


def _steps_of_collectives(entry: Json) -> int:
    """Steps that the single collectives of a rank are of: of many only the first are kept."""
    named = {row.get("step") for row in rows(entry, "collectives")}
    return step_count(entry) if named <= {None} else len(named)


def byte_alignment(view: View) -> Finding | None:
    """Payloads over SDMA that are no multiple of 512 bytes."""
    odd = [
        row
        for row in view.collectives
        if row["link"] in _SDMA
        and (size := number(row, "size_bytes")) is not None
        and size >= limit("sdma_alignment")
        and size % limit("sdma_alignment")
    ]
    if not odd:
        return None
    return Finding(
        "byte_alignment",
        Text(
            f"{_counted(len(odd), 'payload is', 'payloads are')} no multiple of 512 bytes.",
            f"有 {len(odd)} 次通信的数据量不是 512 字节的整数倍。",
        ),
        Text("Pad the tensors that are exchanged to 512 bytes.", "将通信张量按 512 字节对齐填充。"),
        odd,
        severity="low",
    )


def bandwidth_contention(view: View) -> Finding | None:
    """SDMA transfers slowed down while matrix products run."""
    slow: list[Json] = []
    for entry, overlaps in view.facts("overlapped_collectives"):
        busy = {row["name"]: row["matmul_ratio"] for row in overlaps}
        for row in collectives_of(entry):
            size, transit = number(row, "size_bytes"), number(row, "transit_us")
            name = str(row.get("name") or "").split("@")[0]
            if name in busy and row["link"] in _SDMA and size and transit:
                speed = size / transit / 1000
                if speed < limit("sdma_bandwidth"):
                    slow.append({**row, "bandwidth_gbps": round(speed, 3), "matmul_ratio": busy[name]})
    if not slow:
        return None
    return Finding(
        "bandwidth_contention",
        Text(
            f"{len(slow)} transfers under matrix products run below {limit('sdma_bandwidth'):g} GB/s.",
            f"有 {len(slow)} 次与矩阵乘重叠的通信带宽低于 {limit('sdma_bandwidth'):g} GB/s。",
        ),
        Text(
            "Compute and transfer share the memory: move the transfer to a part of the step with less memory traffic.",
            "计算与通信争用带宽：将通信移到访存较少的阶段。",
        ),
        slow,
        severity="low",
    )


def retransmission(view: View) -> Finding | None:
    """A single RDMA operation of more than four seconds."""
    limit_us = limit("rdma_retransmission_ms") * 1000
    slow = [r for r in view.collectives if r["link"] == "RDMA" and (number(r, "transit_us") or 0.0) > limit_us]
    if not slow:
        return None
    return Finding(
        "retransmission",
        Text(f"{len(slow)} RDMA operations took over four seconds.", f"有 {len(slow)} 次 RDMA 通信超过 4 秒。"),
        Text("Packets are lost and sent again: check the network.", "存在丢包重传：请检查网络。"),
        slow,
        severity="high",
    )
