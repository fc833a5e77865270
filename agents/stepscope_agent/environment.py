"""What a run may tell of its surroundings: an allow-list of variables, the commit."""

from __future__ import annotations

import os
import re
from typing import Mapping

from stepscope_agent.masks import SECRET_WORD, masked

LONGEST_VALUE = 512

_PREFIXES = ("HCCL_", "ASCEND_", "MS_", "ACLNN_", "ACL_", "MINDSPORE_", "MF_", "GE_", "TORCH_HCCL_", "NPU_", "RT_")
_NAMES = frozenset(
    (
        "RANK_ID", "RANK_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "DEVICE_ID", "GLOG_v", "PYTORCH_NPU_ALLOC_CONF",
        "TASK_QUEUE_ENABLE", "COMBINED_ENABLE", "CPU_AFFINITY_CONF", "OMP_NUM_THREADS", "HOST_CACHE_CAPACITY",
        "CUDA_DEVICE_MAX_CONNECTIONS", "INF_NAN_MODE_ENABLE", "MULTI_STREAM_MEMORY_REUSE", "STREAMS_PER_DEVICE",
        "P2P_HCCL_BUFFSIZE", "PROFILING_MODE", "PROFILING_OPTIONS", "MSMONITOR_USE_DAEMON", "LCCL_DETERMINISTIC",
        "ENABLE_LAZY_INLINE", "DEVICE_LIST", "SLURM_JOB_ID", "SLURM_NNODES",
    )
)  # fmt: skip
_SECRET_NAME = re.compile(SECRET_WORD, re.IGNORECASE)


def allowed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that shape a training run; never one that sounds like a secret."""
    told = {
        name: masked(value)[:LONGEST_VALUE]
        for name, value in environ.items()
        if (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET_NAME.search(name)
    }
    return dict(sorted(told.items()))


def git_commit(folder: str) -> str | None:
    """The commit checked out in or above `folder`, read from .git without starting a process."""
    folder = os.path.abspath(folder)
    while True:
        git = os.path.join(folder, ".git")
        if os.path.exists(git):
            return _head(git)
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _head(git: str) -> str | None:
    if os.path.isfile(git):  # a worktree: the file says where
        git = os.path.join(os.path.dirname(git), _line(git).replace("gitdir:", "", 1).strip())
    head = _line(os.path.join(git, "HEAD"))
    if not head.startswith("ref:"):
        return head if re.match(r"^[0-9a-f]{40,64}$", head) else None
    name = head[4:].strip()
    common = os.path.join(git, _line(os.path.join(git, "commondir")) or ".")
    for home in (git, common):
        commit = _line(os.path.join(home, name))
        if re.match(r"^[0-9a-f]{40,64}$", commit):
            return commit
    return _packed(os.path.join(common, "packed-refs"), name)


def _packed(path: str, name: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                commit, _, ref = line.strip().partition(" ")
                if ref == name:
                    return commit
    except OSError:
        pass
    return None


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.readline().strip()
    except OSError:
        return ""
