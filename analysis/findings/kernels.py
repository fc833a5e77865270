"""Findings about kernels."""

from __future__ import annotations

from analysis.checklist.evidence import Text
from analysis.entries import Json, mean, number, ratio_of_sums
from analysis.entries import rows as rows_at
from analysis.findings.view import Finding, View, ms, severity, total_us
from analysis.thresholds import limit


def constant_work(view: View) -> Finding | None:
    """The same tables computed in every layer: rotary Cos and Sin are the usual case."""
    us = view.per_step(lambda entry: number(entry, "facts", "constants", "exposed_us"))
    found = view.facts("constants", "by_type")
    if not us or not found:
        return None
    entry, rows = max(found, key=lambda pair: total_us(pair[1]))
    types = ", ".join(sorted({str(row["type"]) for row in rows})[:6])
    return Finding(
        "constant_work",
        Text(
            f"{types}: the same tables are computed again in every layer, {ms(us)} a step.",
            f"{types}：同样的常量表在每一层重复计算，每步 {ms(us)}。",
        ),
        Text(
            "Compute the tables once before the layers, in the dtype the layers use, and pass them in.",
            "在进入各层之前按所需数据类型只计算一次这些表，再传入各层。",
        ),
        [{"rank": entry.get("rank"), **row} for row in rows],
        us,
    )


def ai_cpu(view: View) -> Finding | None:
    """Kernels on the AI CPU that take longer than 20 us each."""
    found = [
        {"rank": entry.get("rank"), **row}
        for entry, rows in view.facts("ai_cpu")
        for row in rows
        if (number(row, "total_us") or 0.0) / (number(row, "count") or 1.0) > limit("ai_cpu_us")
    ]
    if not found:
        return None
    us = view.per_step(lambda entry: number(entry, "facts", "ai_cpu_exposed_us"))
    kinds = sorted({str(row["type"]) for row in found})[:5]
    types = ", ".join(kinds)
    return Finding(
        "ai_cpu",
        Text(f"{types} {'runs' if len(kinds) == 1 else 'run'} on the AI CPU.", f"{types} 在 AI CPU 上执行。"),
        Text(
            "Change the dtype (int64, double and complex fall back to the AI CPU) or take an operator "
            "with an AI Core kernel.",
            "更换数据类型（int64、double、complex 会回退到 AI CPU），或改用有 AI Core 实现的算子。",
        ),
        sorted(found, key=lambda row: -(number(row, "total_us") or 0.0)),
        us,
    )


def movement(view: View) -> Finding | None:
    """Transposes, slices, copies and casts take much of the compute time."""
    pairs = [(number(e, "kernels", "movement_us"), number(e, "kernels", "compute_us")) for e in view.ranks]
    ratio = ratio_of_sums(pairs)
    if ratio is None or ratio < limit("movement_ratio"):
        return None
    worst = sorted(view.ranks, key=lambda entry: -(number(entry, "kernels", "movement_ratio") or 0.0))[:3]
    rows = [{"rank": e.get("rank"), "movement_ratio": number(e, "kernels", "movement_ratio")} for e in worst]
    return Finding(
        "movement",
        Text(f"Moving and converting data takes {ratio:.0%} of compute.", f"数据搬运与转换占计算时间的 {ratio:.0%}。"),
        Text(
            "Choose layouts (BSH, BNSD) that need no transposes between operators, and split and "
            "concatenate weights, not tensors.",
            "选择各算子间无需转置的布局（BSH、BNSD），对权重而不是对激活做拆分与拼接。",
        ),
        rows,
        severity="medium",
    )


def block_dim(view: View) -> Finding | None:
    """Longer kernels that leave cores idle."""
    found = view.facts("block_num", "underfilled")
    us = view.per_step(lambda entry: next((total_us(rows) for other, rows in found if other is entry), 0.0))
    if not found or not us or view.share(us) < limit("fusible_ratio"):
        return None
    entry, rows = max(found, key=lambda pair: total_us(pair[1]))
    return Finding(
        "block_dim",
        Text(f"Kernels of {ms(us)} a step leave cores idle.", f"每步有 {ms(us)} 的算子未用满核。"),
        Text(
            "Their block number is below the number of cores: shapes that are multiples of cores x tile, "
            "or tuned operators, help.",
            "这些算子的 block 数小于核数：将形状对齐为核数与分块的整数倍，或使用调优后的算子。",
        ),
        [{"rank": entry.get("rank"), **row} for row in rows],
        severity="low",
    )


UNITS = {
    "mac": Text("the matrix unit", "矩阵单元"),
    "scalar_cube": Text("the scalar unit", "标量单元"),
    "mte1": Text("copies within the cube core", "Cube 核内搬运"),
    "mte2_cube": Text("copies into the cube core", "Cube 核搬入"),
    "fixpipe": Text("copies out of the matrix unit", "矩阵单元搬出"),
    "vec": Text("the vector unit", "向量单元"),
    "scalar_vector": Text("the scalar unit", "标量单元"),
    "mte2_vector": Text("copies into the vector core", "Vector 核搬入"),
    "mte3": Text("copies out of the vector core", "Vector 核搬出"),
}


def unbound(view: View) -> Finding | None:
    """Longer kernels that keep no unit of the cores busy: they wait for each other, or for too few blocks."""
    entry, rows, us = _most(view, "unbound")
    if entry is None or view.share(us) < limit("unbound_ratio"):
        return None
    told = ((entry.get("facts") or {}).get("block_num") or {}).get("cores")
    cores = min(told.values()) if isinstance(told, dict) and told else 0
    few = any(0 < (number(row, "block_num") or 0) < cores for row in rows)
    worst = rows[0]
    en, zh = f"{worst['type']} most", f"以 {worst['type']} 为最"
    if unit := UNITS.get(str(worst.get("unit"))):
        en += f"; its busiest unit, {unit.en}, works {worst['ratio']:.0%} of the time"
        zh += f"，其最忙的单元（{unit.zh}）占 {worst['ratio']:.0%} 的时间"
    return Finding(
        "unbound",
        Text(
            f"Kernels of {ms(us)} a step keep no unit of the cores busy: {en}.",
            f"每步有 {ms(us)} 的算子未让任何流水单元饱和：{zh}。",
        ),
        Text(
            ("Some have fewer blocks than there are cores: raise the block number first. " if few else "")
            + "Larger shapes (batch, sequence), multiples of the tile, fused operators and tuned tiling help; "
            "many small transfers that share the memory's bandwidth do not.",
            ("部分算子的 block 数小于核数，先提高 block 数。" if few else "")
            + "增大形状（batch、序列长度）、按分块大小对齐、使用融合算子与调优后的 tiling；"
            "避免大量小块搬运争用显存带宽。",
        ),
        [{"rank": entry.get("rank"), **row} for row in rows],
        severity="medium" if view.share(us) >= 2 * limit("unbound_ratio") else "low",
    )


def scalar_bound(view: View) -> Finding | None:
    """Kernels whose scalar unit is busy while the others are not: addresses, loops and waiting, no work on data."""
    entry, rows, us = _most(view, "scalar")
    if entry is None or view.share(us) < limit("scalar_ratio"):
        return None
    types = ", ".join(str(row["type"]) for row in rows[:3])
    return Finding(
        "scalar_bound",
        Text(
            f"{types}: only the scalar unit is busy, in {ms(us)} a step.",
            f"{types}：仅标量单元忙碌，每步 {ms(us)}。",
        ),
        Text(
            "The core works out addresses and loops, or waits, more than it moves or computes data: fewer and larger "
            "blocks, shapes that are multiples of the tile, static shapes, and a newer or tuned kernel help.",
            "核主要在计算地址、执行循环或等待，而不是搬运和计算数据：减少并增大分块、按分块大小对齐形状、使用静态形状，"
            "或换用更新、调优后的算子。",
        ),
        [{"rank": entry.get("rank"), **row} for row in rows],
        severity="medium" if view.share(us) >= limit("severity_high") else "low",
    )


def _most(view: View, kind: str) -> tuple[Json | None, list[Json], float]:
    """The rank with most time in such kernels, its rows, and the mean time of ranks that count, per step."""
    found = view.facts("bounds", kind)
    us = view.per_step(
        lambda entry: (
            total_us(rows_at(entry, "facts", "bounds", kind))
            if number(entry, "facts", "bounds", "judged_us") is not None
            else None
        )
    )
    if not found or not us:
        return None, [], 0.0
    entry, rows = max(found, key=lambda pair: total_us(pair[1]))
    return entry, rows, us


def dynamic_shape(view: View) -> Finding | None:
    """Dynamic shapes where graphs are compiled: each new shape is prepared on the host."""
    found = [
        (entry, ratio)
        for entry in view.ranks
        if (ratio := number(entry, "facts", "dynamic_ratio")) is not None
        and ratio >= limit("dynamic_ratio")
        and ((entry.get("facts") or {}).get("launch") or {}).get("mode") == "graph"
    ]
    if not found:
        return None
    ratio = max(ratio for _, ratio in found)
    return Finding(
        "dynamic_shape",
        Text(f"{ratio:.0%} of compute is in kernels of dynamic shape.", f"{ratio:.0%} 的计算时间为动态形状算子。"),
        Text("Pad or bucket the inputs so that shapes are fixed.", "对输入做填充或分桶，使形状固定。"),
        [{"rank": entry.get("rank"), "dynamic_ratio": ratio} for entry, ratio in found],
        severity="medium",
    )


def fusible(view: View) -> Finding | None:
    """Sequences of small kernels that the host cannot launch fast enough."""
    best: tuple[float, Json, Json] | None = None
    for entry, rows in view.facts("fusible"):
        for row in rows:
            wall = number(row, "wall_us") or 0.0
            if best is None or wall > best[0]:
                best = (wall, entry, row)
    steps = number(best[1], "facts", "steps") or 1.0 if best else 1.0
    if best is None or view.share(best[0] / steps) < limit("fusible_ratio"):
        return None
    wall, entry, row = best
    types = " + ".join(row["types"])
    return Finding(
        "fusible",
        Text(
            f"{types} comes {row['count']} times and waits for the host: {ms(wall / steps)} a step for little work.",
            f"{types} 出现 {row['count']} 次且在等待主机下发：每步耗时 {ms(wall / steps)}，实际计算很少。",
        ),
        Text(
            "Replace the sequence by a fused operator, or jit the layer so that the compiler fuses it.",
            "用融合算子替换该序列，或对该层使用 jit 由编译器融合。",
        ),
        [{"rank": entry.get("rank"), **other} for other in (view.facts("fusible")[0][1])],
        severity="medium" if view.share(wall / steps) >= limit("severity_medium") else "low",
    )


CALLS = {
    "RmsNorm": ("ops.rms_norm", "npu_rms_norm"),
    "LayerNorm": ("ops.layer_norm", "torch.nn.functional.layer_norm"),
    "Softmax": ("ops.softmax", "torch.softmax"),
    "SwiGlu": ("ops.swiglu", "npu_swiglu"),
    "Gelu": ("ops.gelu", "torch.nn.functional.gelu"),
    "RotaryPositionEmbedding": ("ops.rotary_position_embedding", "npu_rotary_mul"),
    "FusedAdamW": ("mint.optim.FusedAdamW", "torch_npu.optim.NpuFusedAdamW"),
}
"""Fused operator -> what calls it in MindSpore and on torch_npu."""


def affinity(view: View) -> Finding | None:
    """Small kernels one after another for which the device has one fused operator."""
    found = [(entry, found) for entry, found in view.facts("affinity")]
    us = view.per_step(lambda entry: next((total_us(own) for other, own in found if other is entry), 0.0))
    if not found or view.share(us) < limit("affinity_ratio"):
        return None
    entry, own = max(found, key=lambda pair: total_us(pair[1]))
    names = ", ".join(str(row["fused"]) for row in own)
    saved = view.per_step(lambda entry: _sum(rows_at(entry, "facts", "affinity"), "saved_us"))
    calls = [CALLS[row["fused"]] for row in own if row["fused"] in CALLS]
    mindspore, torch = (", ".join(call[side] for call in calls) for side in (0, 1))
    return Finding(
        "affinity",
        Text(
            f"Sequences of small kernels do the work of {names}: {ms(us or 0.0)} a step.",
            f"由多个小算子拼成、可由 {names} 融合算子完成的序列每步耗时 {ms(us or 0.0)}。",
        ),
        view.evidence.advice(
            Text(f"Call the fused operator instead: {mindspore}.", f"改用融合算子：{mindspore}。"),
            Text(f"Call the fused operator instead: {torch}.", f"改用融合算子：{torch}。"),
        ),
        [{"rank": entry.get("rank"), **row} for row in own],
        saved or None,
        severity=severity(us, view.step_us),
    )


def fused_collectives(view: View) -> Finding | None:
    """Products and collectives in layers that wait for each other, where one operator could do both in pieces."""
    found = view.facts("fused_collectives")
    saved = view.per_step(lambda entry: _sum(rows_at(entry, "facts", "fused_collectives"), "saved_us"))
    if not found or view.share(saved) < limit("affinity_ratio"):
        return None
    entry, own = max(found, key=lambda pair: _sum(pair[1], "saved_us"))
    names = ", ".join(str(row["fused"]) for row in own)
    exposed = view.per_step(lambda entry: _sum(rows_at(entry, "facts", "fused_collectives"), "exposed_us")) or 0.0
    return Finding(
        "fused_collectives",
        Text(
            f"In layers products and collectives wait for each other, {ms(exposed)} a step that nothing hides; "
            f"{names} would do both at once.",
            f"层内矩阵乘与集合通信互相等待，每步有 {ms(exposed)} 的通信未被掩盖；可由 {names} 通算融合算子完成。",
        ),
        view.evidence.advice(
            Text(
                "Turn on the fusion of compute and communication (compute_communicate_fusion_level of MindSpore's "
                "ascend_config), or split the batch so that another part computes meanwhile.",
                "开启通算融合（MindSpore ascend_config 的 compute_communicate_fusion_level），"
                "或切分 batch 让另一部分同时计算。",
            ),
            Text(
                "Use MC2 (npu_all_gather_base_mm, npu_mm_reduce_scatter_base; --use-ascend-mc2 of MindSpeed), or its "
                "overlap of communication in tensor parallel layers.",
                "使用 MC2（npu_all_gather_base_mm、npu_mm_reduce_scatter_base；MindSpeed 的 --use-ascend-mc2），"
                "或其张量并行层的通信重叠。",
            ),
        ),
        [{"rank": entry.get("rank"), **row} for row in own],
        saved,
    )


def _sum(found: list[Json], key: str) -> float:
    return sum(number(row, key) or 0.0 for row in found)


def sync_batch_norm(view: View) -> Finding | None:
    """Batch normalisation over all ranks: each one is an exchange of its own."""
    count = view.per_step(
        lambda entry: sum(
            number(row, "count") or 0.0
            for row in rows_at(entry, "op_types")
            if str(row.get("type") or "").lower().startswith("syncbatchnorm")
        )
    )
    if (count or 0.0) <= limit("sync_batch_norm_count"):
        return None
    return Finding(
        "sync_batch_norm",
        Text(
            f"SyncBatchNorm runs {count:.0f} times a step, and waits for all ranks each time.",
            f"SyncBatchNorm 每步执行 {count:.0f} 次，每次都要等待所有 rank。",
        ),
        Text(
            "Use batch normalisation within a rank where the batch of a rank is large enough.",
            "单卡 batch 足够大时改用单卡内的批归一化。",
        ),
        [{"type": "SyncBatchNorm", "count": count}],
        severity="medium",
    )


def frequency_drop(view: View) -> Finding | None:
    """AI Core clock below the rated one, or far below its own median in part of the capture."""
    rated = _rated_mhz(view)
    found: list[Json] = []
    for entry in view.ranks:
        median, slow = number(entry, "facts", "clock", "median_mhz"), number(entry, "facts", "clock", "slow_mhz")
        reference = rated or median
        lowest = median if rated else slow
        if reference and lowest and 1 - lowest / reference >= limit("frequency_drop"):
            found.append({"rank": entry.get("rank"), "mhz": lowest, "reference_mhz": reference})
    if not found:
        return None
    worst = min(float(row["mhz"]) / float(row["reference_mhz"]) for row in found)
    return Finding(
        "frequency_drop",
        Text(f"The AI Core clock drops by {1 - worst:.0%}.", f"AI Core 频率下降 {1 - worst:.0%}。"),
        Text("Check temperature, power limit and the health of the device.", "检查温度、功耗上限与设备健康状态。"),
        found,
        severity="high" if 1 - worst >= 2 * limit("frequency_drop") else "medium",
    )


def _rated_mhz(view: View) -> float | None:
    info = view.evidence.source.get("device_info")
    devices = info.get("DeviceInfo") if isinstance(info, dict) else None
    device = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    try:
        return float(device.get("aic_frequency")) or None  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def expert_load(view: View) -> Finding | None:
    """Experts get very different numbers of tokens: those of one rank, where shapes list them, or those of ranks."""
    loads = [(entry, value) for entry in view.ranks if (value := number(entry, "facts", "expert_load", "ratio"))]
    worst = max((value for _, value in loads), default=0.0)
    across = rows_at(view.cluster, "expert_load", "ranks")
    between = max((float(row["ratio"]) for row in across), default=0.0)
    if max(worst, between) < limit("expert_load"):
        return None
    if between >= worst:
        told = Text(
            f"The busiest rank's experts get {between:.1f} times the mean number of tokens.",
            f"最繁忙的 rank 上的专家获得的 token 数为平均值的 {between:.1f} 倍。",
        )
        evidence: list[Json] = sorted(across, key=lambda row: -float(row["ratio"]))
    else:
        told = Text(
            f"The busiest expert of a rank gets {worst:.1f} times the mean number of tokens.",
            f"单卡上最繁忙的专家获得的 token 数为平均值的 {worst:.1f} 倍。",
        )
        typical = mean(value for _, value in loads)
        evidence = [{"rank": entry.get("rank"), "ratio": value, "mean_ratio": typical} for entry, value in loads]
    return Finding(
        "expert_load",
        told,
        Text(
            "Raise the load-balancing loss or use expert bias, and place hot experts on different ranks.",
            "提高负载均衡损失或使用专家偏置，并将热点专家分散到不同的卡上。",
        ),
        evidence,
        severity="medium",
    )
