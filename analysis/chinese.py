"""Sentences of dumps and readers in Simplified Chinese, by pattern: `{}` stands for any text that is kept.

Summaries and advice are written in both languages where they are made. What readers say of files (warnings, errors,
gaps, faults) is made in English alone, and found here by its wording, so that reports stored long ago read well too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

Json = dict[str, Any]

VOLUMES = (
    ("tensor parallel groups", "张量并行组"),
    ("gradients and weights", "梯度与权重"),
    ("experts", "专家并行组"),
    ("pipeline stages", "流水线阶段间"),
    ("context parallel groups", "上下文并行组"),
)
PHRASES: tuple[tuple[str, str], ...] = (
    # gaps: what is not there
    (
        "run configuration (YAML, or a Megatron job's script or log)",
        "运行配置（YAML，或 Megatron 作业的启动脚本或日志）",
    ),
    ("chip", "芯片型号"),
    ("model sizes", "模型尺寸"),
    ("parallel split", "并行切分"),
    ("operator types", "算子类型"),
    ("transit times and sizes", "传输时间与数据量"),
    ("shapes and data types", "形状与数据类型"),
    ("step ids", "步编号"),
    ("--config RUN.yaml", "上传时加 --config RUN.yaml 附上运行配置"),
    ("say {} in the configuration", "在配置中写明 {}"),
    (
        "say {} in the script and set its variables, or give the job's log, which prints them",
        "在脚本中写明 {} 并为其变量赋值，或附上打印了这些参数的作业日志",
    ),
    (
        "--soc with the exact chip name (such as Ascend910B3), PROF_*/device_*/info.json in the dump, "
        "or a peak in the project's settings",
        "用 --soc 给出准确的芯片型号（如 Ascend910B3），或让数据包含 PROF_*/device_*/info.json，"
        "或在项目设置中填写峰值算力",
    ),
    ("profile with activity CPU; upload with --with-trace", "采集时包含 CPU 活动，并用 --with-trace 上传"),
    (
        "profile with schedule(...) and call step() once per training step",
        "使用 schedule(...) 采集，并在每个训练步调用一次 step()",
    ),
    ("profile_memory=True", "采集时设置 profile_memory=True"),
    ("profiler_level=Level1", "采集时设置 profiler_level=Level1"),
    (
        "record activities CPU and NPU with a schedule, and upload this file",
        "使用 schedule 采集 CPU 与 NPU 活动，并上传该文件",
    ),
    (
        "record activity NPU with export_type Text or Db, and upload this file",
        "采集 NPU 活动，export_type 选 Text 或 Db，并上传该文件",
    ),
    (
        "train under stepscope_agent.mindspore.StepscopeCallback, or pass --config",
        "使用 stepscope_agent.mindspore.StepscopeCallback 训练，或用 --config 附上配置",
    ),
    (
        "train under the agent's callback, or pass the training log (--log)",
        "使用代理的训练回调，或用 --log 附上训练日志",
    ),
    # evidence of the checklist
    ("device ratio {} is not above {}", "设备利用占比 {} 未超过 {}"),
    ("mode is {}", "运行模式为 {}"),
    ("sink is off", "未开启下沉"),
    ("highest on this rank", "该 rank 最高"),
    ("highest on {}", "{} 最高"),
    ("kernels belong to a graph loaded on the device (model id)", "算子属于已加载到设备上的图（有 model id）"),
    ("kernel names carry scopes of a compiled graph", "算子名带有编译图的作用域"),
    ("kernels are launched one by one (aclnn names, no graph model id)", "算子逐个下发（aclnn 名称，无图 model id）"),
    ("torch_npu launches kernels one by one (no graph model id)", "torch_npu 逐个下发算子（无图 model id）"),
    ("mask dtype is {}, not bool or uint8", "掩码数据类型为 {}，不是 bool 或 uint8"),
    ("mask shape is {}", "掩码形状为 {}"),
    (
        "no model config (attach the run's YAML, or a Megatron job's script or log)",
        "缺少模型配置（请附上运行的 YAML，或 Megatron 作业的启动脚本或日志）",
    ),
    ("config lacks {}", "配置缺少 {}"),
    (
        "number of devices is unknown (say the data parallel size in the configuration)",
        "卡数未知（请在配置中写明数据并行数）",
    ),
    ("number of devices", "卡数"),
    (
        "say the data parallel size in the configuration (a Megatron job's log prints it), or use the callback",
        "在配置中写明数据并行数（Megatron 作业的日志会打印），或使用代理的训练回调",
    ),
    ("peak of the chip is unknown (name the SoC, such as Ascend910B3)", "芯片峰值未知（请给出型号，如 Ascend910B3）"),
    *(
        (f"{en} carry {{}} a step; the split needs at {bound} {{}}", f"{zh}每步通信 {{}}，而切分{needs} {{}}")
        for en, zh in VOLUMES
        for bound, needs in (("most", "至多需要"), ("least", "至少需要"))
    ),
    ("split as configured", "切分与配置一致"),
    ("not split over TP {}", "未按 TP {} 切分"),
    ("split along hidden instead of the FFN width", "沿 hidden 而不是 FFN 宽度切分"),
    (
        "TP is {} but there is no allReduce, and no allGather with reduceScatter",
        "TP 为 {}，却没有 allReduce，也没有 allGather 加 reduceScatter",
    ),
    ("EP is {} but there is no allToAll", "EP 为 {}，却没有 allToAll"),
    (
        "allReduce or allToAll inside layers although TP, CP and EP are 1",
        "TP、CP、EP 均为 1，层内却有 allReduce 或 allToAll",
    ),
    ("mean relative loss difference {} is over {}", "损失平均相对差 {} 超过 {}"),
    ("the difference grows by {}", "差异增长了 {}"),
    ("mean relative norm difference {} is over {}", "梯度范数平均相对差 {} 超过 {}"),
    # FLOPs and layers
    ("the config splits over {} devices, the run has {}", "配置按 {} 张卡切分，而运行有 {} 张卡"),
    (
        "the config is of another model: it says {} heads of {} over {} tensor parallel ranks, attention kernels have "
        "{} of {}",
        "配置属于另一个模型：配置为 {} 个头、每头 {}、按 {} 路张量并行切分，而注意力算子为 {} 个头、每头 {}",
    ),
    (
        "the config is of another model: it says {} heads of {} over {} tensor parallel ranks, attention kernels have "
        "{} in all",
        "配置属于另一个模型：配置为 {} 个头、每头 {}、按 {} 路张量并行切分，而注意力算子总宽度为 {}",
    ),
    (
        "the config is of another model: it says {} heads of {}, attention kernels have {} of {}",
        "配置属于另一个模型：配置为 {} 个头、每头 {}，而注意力算子为 {} 个头、每头 {}",
    ),
    (
        "the config is of another model: it says {} heads of {}, attention kernels have {} in all",
        "配置属于另一个模型：配置为 {} 个头、每头 {}，而注意力算子总宽度为 {}",
    ),
    (
        "{} of {} is impossible: config, step time or peak ({}) is wrong",
        "{} 为 {} 不可能：配置、单步耗时或峰值（{}）有误",
    ),
    ("no layers found: kernels have no names or types", "未识别出层：算子没有名称与类型"),
    ("no layers found: no repeating attention core among the kernels", "未识别出层：算子中没有重复出现的注意力核心"),
    (
        "it cannot be told which passes are chunks of one micro-batch: each pass counts as a micro-batch",
        "无法区分哪些前反向属于同一 micro-batch 的不同虚拟段：每次前反向按一个 micro-batch 计",
    ),
    (
        "weight gradients that run apart from their layer cannot be told by layer: they are left unattributed",
        "与所在层分开执行的权重梯度无法归到具体的层：按未归属处理",
    ),
    (
        "backward follows the links of the saved graph, and order and shapes say another layer for part of it: "
        "gradients of a primitive that several layers share all link to one of them, so where layers are alike trust "
        "order and shapes",
        "反向按已保存计算图中的链接归属，其中一部分按次序与形状应属于另一层：多层共用的原语，其梯度都链接到同一层；"
        "因此各层结构相同时应以次序与形状为准",
    ),
    # warnings
    ("rank is told differently: {}", "各文件中的 rank 不一致：{}"),
    ("ranks of different jobs? {} is {}", "这些 rank 是否来自不同作业？{} 为 {}"),
    ("rank {} is there {} times", "rank {} 出现了 {} 次"),
    ("ranks profiled different steps: {} on most, but {}", "各 rank 采集的步不同：多数为 {}，而 {}"),
    (
        "{} is a link to a folder, and links are not followed: what it holds is left out",
        "{} 是指向文件夹的链接，不跟随链接，其中内容未计入",
    ),
    (
        "{}: every row stands in it more than once; {} copies are left out",
        "{}：每一行都重复出现，{} 行重复内容未计入",
    ),
    (
        "{}: none of {} launches leads to a kernel of {}: it is of another rank or time, and is left out",
        "{}：{} 次下发没有一次对应 {} 中的算子：属于其他 rank 或其他时段，未计入",
    ),
    (
        "{} is of device {}, {} of device {}: one of them is of another rank",
        "{} 属于设备 {}，{} 属于设备 {}：其中之一属于另一个 rank",
    ),
    (
        "{}: step ids below 0 are no steps; in {} rows the step is left unknown",
        "{}：小于 0 的步编号不是步；共 {} 行的步按未知处理",
    ),
    ("{}: step ids below 0 are no steps; {} such rows are left out", "{}：小于 0 的步编号不是步；{} 行未计入"),
    (
        "{}: all {} kernels start at the same time; when they ran is taken as unknown",
        "{}：全部 {} 个算子的开始时间相同，运行时刻按未知处理",
    ),
    (
        "no file holds a communication operation although this rank is one of {}: communication and free time are "
        "unknown; profile with activity NPU at Level1",
        "本 rank 属于 {} 个 rank 的作业，但没有任何通信记录：通信与空闲时间未知；请采集 NPU 活动并使用 Level1",
    ),
    (
        "no file holds a communication operation although {} is one of {}: communication and free time are unknown; "
        "profile with activity NPU at Level1",
        "{} 属于 {} 个 rank 的作业，但没有任何通信记录：通信与空闲时间未知；请采集 NPU 活动并使用 Level1",
    ),
    ("{} more warnings", "另有 {} 条警告"),
    (
        "kernels are of steps {}, {} tells steps {}: nothing of one is known of the other",
        "算子属于第 {} 步，而 {} 记录的是第 {} 步：二者无法对应",
    ),
    ("step {}: compute kernels sum to {} us, {} says {} us", "第 {} 步：计算算子合计 {} us，而 {} 记为 {} us"),
    ("line {}: {} cells where the header has {}", "第 {} 行：有 {} 个单元格，表头为 {} 个"),
    (
        "line {}: {} is no number; in {} of {} steps it is left unknown",
        "第 {} 行：{} 不是数字；{} 步（共 {} 步）按未知处理",
    ),
    (
        "line {}: start time is no number; in {} rows it is left unknown",
        "第 {} 行：开始时间不是数字；共 {} 行按未知处理",
    ),
    (
        "line {}: start time is out of range; in {} rows it is left unknown",
        "第 {} 行：开始时间超出范围；共 {} 行按未知处理",
    ),
    (
        "line {}: start time is a month from the others; in {} rows it is left unknown",
        "第 {} 行：开始时间与其余各行相差一个月以上；共 {} 行按未知处理",
    ),
    ("line {}: duration is no number; in {} rows it is left unknown", "第 {} 行：时长不是数字；共 {} 行按未知处理"),
    ("line {}: duration is negative; in {} rows it is left unknown", "第 {} 行：时长为负；共 {} 行按未知处理"),
    (
        "line {}: duration is longer than a day; in {} rows it is left unknown",
        "第 {} 行：时长超过一天；共 {} 行按未知处理",
    ),
    ("line {}: {}; in {} rows it is left unknown", "第 {} 行：{}；共 {} 行按未知处理"),
    ("line {}: the header again; {} such rows are left out", "第 {} 行：重复的表头；已略去 {} 行"),
    ("line {}: is not a step record, and {} more such lines", "第 {} 行：不是步记录，另有 {} 行同样如此"),
    ("line {}: is not a step record", "第 {} 行：不是步记录"),
    ("holds devices {}; only device {} is reported, not {}", "含设备 {}；只报告设备 {}，不含 {}"),
    (
        "line 1: cells are separated by {}, not commas: export the file again, or as plain CSV",
        "第 1 行：单元格以 {} 分隔而不是逗号：请重新导出，或另存为普通 CSV",
    ),
    (
        "line 1: lines end in a carriage return alone, which no profiler writes; save them with \\n",
        "第 1 行：行尾只有回车符，采集工具不会这样写；请以 \\n 换行保存",
    ),
    (
        "line {}: another header with other columns: two files were put together",
        "第 {} 行：出现列不同的另一个表头：两个文件被拼在了一起",
    ),
    ("holds no kernels: table {} is missing", "没有算子：缺少表 {}"),
    ("holds no kernels: table {} has no {}", "没有算子：表 {} 缺少列 {}"),
    ("is cut: {} of {} bytes are here", "被截断：只有 {} / {} 字节"),
    ("{} lies beside it: what a tool wrote there last is not read", "旁边有 {}：工具最后写入的内容未被读取"),
    (
        "table STRING_IDS is missing: names, types and shapes of kernels are unknown",
        "缺少表 STRING_IDS：算子的名称、类型与形状未知",
    ),
    (
        "line {}: {} is no number, or out of range; in {} rows it is left unknown",
        "第 {} 行：{} 不是数字或超出范围；共 {} 行按未知处理",
    ),
    (
        "{} operations have no elapse time that is a number; it is left unknown",
        "{} 个通信算子的耗时不是数字，按未知处理",
    ),
    (
        "holds {} kernels of {} us where {} counts {} kernels of {} us: a part is missing",
        "含 {} 个算子共 {} us，而 {} 统计为 {} 个算子共 {} us：缺少一部分",
    ),
    ("has no samples of batches", "没有 batch 的采样"),
    ("has no stages of a dataset", "没有数据集操作的阶段"),
    ("has no operations of a data pipeline", "没有数据流水线的操作"),
    ("holds devices {}; devices {} are reported, not {}", "含设备 {}；报告了设备 {}，不含 {}"),
    (
        "no file tells the ranks of devices {}; they are numbered in order: device {} is rank {}",
        "没有文件说明设备 {} 的 rank；按设备顺序编号：设备 {} 为 rank {}",
    ),
    ("{} of {} runs of operators cannot be read", "{} 次算子执行（共 {} 次）无法读取"),
    ("{} rows have no operator name or no time", "{} 行没有算子名或时间"),
    (
        "mean times per operator; there is no order in time, so steps and gaps are unknown",
        "只有每个算子的平均时间，没有先后次序，步与间隙未知",
    ),
    ("{} rows cannot be read", "{} 行无法读取"),
    ("{} rows are no step", "{} 行不是训练步"),
    ("step {}: operators are no JSON", "第 {} 步：算子不是 JSON"),
    ("{}: no time information", "{}：没有时间信息"),
    ("{} events have no time that can be; they are left out", "{} 个事件的时间不可能存在，已略去"),
    ("{} of {} steps have no readable Computing time", "{} 步（共 {} 步）没有可读的 Computing 时间"),
    ("{} steps have a time below zero, taken as unknown", "{} 步的时间小于零，按未知处理"),
    ("{} steps stand in it more than once", "{} 步在其中出现不止一次"),
    ("{} kernels are longer than a day; they have no duration", "{} 个算子长于一天，其时长按未知处理"),
    ("{} kernels end before they start; they have no duration", "{} 个算子的结束早于开始，其时长按未知处理"),
    ("reading stopped: {}", "读取中止：{}"),
    (
        "{} steps occur again (the run was started again); the last values are kept",
        "{} 步重复出现（运行曾重新启动）；保留最后的值",
    ),
    ("{} step lines could not be read: {}", "{} 行步日志无法读取：{}"),
    ("{} values could not be read ({}): {}", "{} 个值无法读取（{}）：{}"),
    ("{} lines are over {} bytes; only their beginning was read", "{} 行超过 {} 字节；只读取了开头"),
    ("only the first {} steps were read", "只读取了前 {} 步"),
    ("no step lines found", "未找到步日志"),
    # errors of files
    ("its bytes are not where they should be", "文件内容不在应有的位置"),
    ("does not tell a device", "没有说明设备"),
    ("gzip data is cut or damaged", "gzip 数据被截断或损坏"),
    ("has a header and no rows", "只有表头，没有数据行"),
    ("has a step trace without rows", "步轨迹没有数据行"),
    ("has no ProfilerStep ranges", "没有 ProfilerStep 区间"),
    ("has no communication matrix", "没有通信矩阵"),
    ("has no communication", "没有通信数据"),
    ("has no kernels: {}", "没有算子：{}"),
    ("has no memory record", "没有内存记录"),
    ("has no step times", "没有单步耗时"),
    ("has no step trace: {}", "没有步轨迹：{}"),
    ("has no rows of rank {}", "没有 rank {} 的数据行"),
    ("holds nothing that tells times; it has {}", "没有任何时间数据；含有 {}"),
    ("holds no profiler files that are known", "不含已知的采集文件"),
    (
        "holds no profiler files that are known; {} is an archive itself: unpack it first",
        "不含已知的采集文件；{} 本身是压缩包：请先解压",
    ),
    ("holds no {}", "不含 {}"),
    ("holds more than {} files; name the folder of a run", "文件超过 {} 个；请指定单次运行的目录"),
    ("holds more than {} members", "归档成员超过 {} 个"),
    (
        "holds NUL bytes, first near line {}: not a text file, or damaged",
        "含 NUL 字节，首次出现在第 {} 行附近：不是文本文件或已损坏",
    ),
    ("is empty (zero bytes) ({} more files cannot be read)", "是空文件（零字节）（另有 {} 个文件无法读取）"),
    ("is empty (zero bytes)", "是空文件（零字节）"),
    ("is nested more than {} deep", "嵌套超过 {} 层"),
    ("is nested too deep for a profiler's file", "嵌套过深，不像采集文件"),
    ("one run per operator; steps and gaps are unknown", "每个算子只有一次执行；步与间隙未知"),
    ("tells {} steps, the step trace {}: left out", "记录了 {} 步，step trace 为 {} 步：已略去"),
    ("is not a memory record of modules: columns are missing", "不是模块内存记录：缺少列"),
    ("tells no FLOPs", "没有 FLOPs"),
    ("holds no scopes", "没有作用域"),
    ("{} rows have a time or size below zero, taken as unknown", "{} 行的时间或大小为负，按未知处理"),
    ("is a folder, not a file", "是文件夹，不是文件"),
    ("is a named pipe, not a file", "是命名管道，不是文件"),
    ("is a socket, not a file", "是套接字，不是文件"),
    ("is a device, not a file", "是设备，不是文件"),
    (
        "holds no profiler files that are known; {} is a link, and links are not followed",
        "不含已知的采集文件；{} 是链接，链接不会被跟随",
    ),
    ("is a link to nothing", "是指向不存在目标的链接"),
    ("cannot be looked at", "无法查看"),
    ("holds no profiler files that can be read: {}", "没有可读取的性能数据文件：{}"),
    ("one entry is longer than {} MiB", "单个条目超过 {} MiB"),
    ("line {}: one entry is longer than {} MiB", "第 {} 行：单个条目超过 {} MiB"),
    ("has no rows of rank {}", "没有 rank {} 的数据行"),
    ("is not UTF-8 text", "不是 UTF-8 文本"),
    ("line {}: is not UTF-8 text", "第 {} 行：不是 UTF-8 文本"),
    ("line {}: a quote is never closed", "第 {} 行：引号没有闭合"),
    ("line {}: is not valid JSON, or was cut ({})", "第 {} 行：不是有效的 JSON，或被截断（{}）"),
    ("line {}: is no header ({})", "第 {} 行：不是表头（{}）"),
    ("line {} is longer than {}", "第 {} 行长于 {}"),
    ("is not a table that can be read ({})", "表格无法读取（{}）"),
    ("is not a trace that can be read, or was cut ({})", "轨迹无法读取，或被截断（{}）"),
    ("is not usable JSON ({})", "不是可用的 JSON（{}）"),
    ("is not a JSON object", "不是 JSON 对象"),
    ("is not YAML: {}", "不是 YAML：{}"),
    ("is not a run config: {}", "不是运行配置：{}"),
    ("is not a kernel table: no column for {}", "不是算子表：没有 {} 列"),
    ("is not an SQLite database", "不是 SQLite 数据库"),
    ("database cannot be read ({})", "数据库无法读取（{}）"),
    ("is not a profiler file or archive that is known", "不是已知的采集文件或归档"),
    ("is not {}", "不是 {}"),
    ("is larger than {} characters", "超过 {} 个字符"),
    ("is {} MiB; {} MiB at most are read", "有 {} MiB；最多读取 {} MiB"),
    ("is {} GiB: not read", "有 {} GiB：未读取"),
    ("is no file", "不是文件"),
    ("cannot be read: {}", "无法读取：{}"),
    ("does not exist", "不存在"),
    ("unpacks past the limit of {} MiB: refused as a bomb", "解压后超过 {} MiB 上限：已拒绝"),
    ("has {} columns; {} at most are expected", "有 {} 列；最多应为 {} 列"),
    ("has more than {} values once its aliases are expanded", "展开别名后超过 {} 个值"),
    ("archive cannot be read ({})", "归档无法读取（{}）"),
    ("archive cannot be unpacked ({})", "归档无法解开（{}）"),
    ("archive is cut or damaged ({})", "归档被截断或损坏（{}）"),
    ("member {} is a link or device: refused", "成员 {} 是链接或设备：已拒绝"),
    ("member {} is there twice", "成员 {} 出现了两次"),
    ("member {} points outside the archive", "成员 {} 指向归档之外"),
    (
        "raw profiler data, not parsed yet; {}",
        "原始采集数据尚未解析；请在训练主机上运行 `msprof --export=on` 或 mindspore.profiler.profiler.analyse",
    ),
)


@lru_cache(maxsize=1)
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    # Two sentences are joined by "; ": a place never reaches over that.
    return [(re.compile("((?:(?!; ).)+?)".join(map(re.escape, en.split("{}"))), re.S), zh) for en, zh in PHRASES]


def chinese(text: str) -> str | None:
    """The sentence in Chinese; None where its wording is not known. A leading "file: " or "rank 3: " is kept."""
    for pattern, zh in _patterns():
        if found := pattern.fullmatch(text):
            return zh.format(*found.groups()[: zh.count("{}")])
    for separator in ("; ", ": "):
        head, there, rest = text.partition(separator)
        if there and (known := chinese(rest)):
            if separator == ": ":
                return f"{head}：{known}"
            if first := chinese(head):
                return f"{first}；{known}"
    return None


def _add(row: Any, *keys: str) -> None:
    for key in keys:
        text = row.get(key) if isinstance(row, dict) else None
        if isinstance(text, str) and text and not row.get(f"{key}_zh"):
            row[f"{key}_zh"] = chinese(text) or text


def add_chinese(report: Json) -> Json:
    """Give every sentence of the report that has none its twin in Chinese: `how_zh`, `text_zh`, `error_zh` ..."""
    source = report.get("source") or {}
    source["missing"] = [dict(row) for row in source.get("missing") or []]
    for row in source["missing"]:
        _add(row, "file", "how")
    source["warnings_zh"] = [chinese(str(text)) or str(text) for text in source.get("warnings") or []]
    judged = [*((report.get("checklist") or {}).get("items") or []), *(report.get("findings") or [])]
    for item in judged:
        for piece in item.get("evidence") or []:
            _add(piece, "text")
    for entry in report.get("ranks") or []:
        _add(entry.get("flops"), "error")
        if isinstance(entry.get("layers"), Mapping):
            entry["layers"] = dict(entry["layers"])
            _add(entry["layers"], "reason", "doubt")
    return report
