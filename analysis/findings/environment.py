"""Environment variables that cost time. Sources: defaults of the public msprof-analyze advisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from analysis.checklist.evidence import Text
from analysis.findings.view import Finding, View


class _Rule(NamedTuple):
    name: str
    bad: Callable[[str], bool]
    why: Text


def _set(value: str) -> bool:
    return value != ""


RULES = (
    _Rule(
        "ASCEND_LAUNCH_BLOCKING", lambda v: v == "1", Text("each launch waits for the device", "每次下发都会等待设备")
    ),
    _Rule(
        "ASCEND_GLOBAL_LOG_LEVEL",
        lambda v: v not in ("", "3", "4"),
        Text("logs below error level slow the host down", "低于 ERROR 的日志级别会拖慢主机"),
    ),
    _Rule("HCCL_ALGO", _set, Text("the communication algorithm is forced", "通信算法被强制指定")),
    _Rule("HCCL_RDMA_TC", _set, Text("the RDMA traffic class differs from the default", "RDMA 流量类别非默认值")),
    _Rule("HCCL_RDMA_SL", _set, Text("the RDMA service level differs from the default", "RDMA 服务等级非默认值")),
    _Rule(
        "ACLNN_CACHE_LIMIT",
        lambda v: v.isdigit() and int(v) < 10_000,
        Text("the operator cache is small", "算子缓存偏小"),
    ),
    _Rule("PROFILING_MODE", lambda v: v == "true", Text("profiling is on for the whole run", "整个运行期间开启了采集")),
    _Rule("MS_DEV_SAVE_GRAPHS", lambda v: v not in ("", "0"), Text("graphs are written to disk", "计算图被保存到磁盘")),
    _Rule("MS_DEV_RUNTIME_CONF", lambda v: "synchronize:True" in v, Text("kernels run one at a time", "算子同步执行")),
)


def variables(view: View) -> Finding | None:
    """Variables set to values that are known to slow training down."""
    told = view.evidence.run.get("environment") or view.evidence.source.get("environment")
    values = {str(k): str(v) for k, v in told.items()} if isinstance(told, Mapping) else {}
    bad = [(rule, values[rule.name]) for rule in RULES if rule.name in values and rule.bad(values[rule.name])]
    if not bad:
        return None
    names = ", ".join(f"{rule.name}={value[:40]}" for rule, value in bad)
    blocking = any(rule.name in ("ASCEND_LAUNCH_BLOCKING", "MS_DEV_RUNTIME_CONF") for rule, _ in bad)
    return Finding(
        "environment",
        Text(f"Environment variables cost time: {names}.", f"环境变量影响性能：{names}。"),
        Text("Unset them for training that is measured.", "在性能训练中请取消这些设置。"),
        [{"name": rule.name, "value": value[:200], "text": rule.why.en, "text_zh": rule.why.zh} for rule, value in bad],
        severity="high" if blocking else "low",
    )
