"""What a run may tell of its surroundings: an allow-list of variables, a masked command line, the commit."""

from __future__ import annotations

import os
import re
from typing import Mapping, Sequence

MASK = "***"
HIDDEN = '"***"'
LONGEST_VALUE = 512
LONGEST_COMMAND = 4000

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
_SECRET_WORD = r"(?:token|secret|passw(?:or)?d|pwd|credential|auth|cookie|api[-_]?key|access[-_]?key|private[-_]?key)"
_SECRET_NAME = re.compile(_SECRET_WORD, re.IGNORECASE)
_SECRET_OPTION = re.compile(r"^-{1,2}[\w-]*%s$" % _SECRET_WORD, re.IGNORECASE)
_SECRET_PAIR = re.compile(r"([\w.-]*%s[\w.-]*\s*[=:]\s*)(?!\s)[^\s,;&}]+" % _SECRET_WORD, re.IGNORECASE)
_URL_LOGIN = re.compile(r"(\w+://)[^/@\s]+@")
_KNOWN_TOKENS = re.compile(r"\b(?:sk-|hf_|ghp_|gho_|glpat-|AKIA|xox[abp]-|eyJ)[A-Za-z0-9_\-.]{8,}")
_HARMLESS = (
    r"(?:pad|bos|eos|unk|mask|cls|sep|additional_special|image|prompt|end|start|stop|new|max_new|max|min|num|total"
    r"|special)_tokens?"
)
_SECRET_KEY = r"[\"']?(?!%s\b)(?:[\w-]*[-_])?%ss?[\"']?" % (_HARMLESS, _SECRET_WORD)
_SECRET_LINE = re.compile(r"^((?:\s|-\s)*)(%s\s*:)(?:[ \t]+(\S.*?))?[ \t]*$" % _SECRET_KEY, re.IGNORECASE)
_SECRET_INLINE = re.compile(
    r"([{,]\s*%s\s*:\s*)(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^,}\]\s][^,}\]]*)" % _SECRET_KEY, re.IGNORECASE
)
_INDENT = re.compile(r"^(?:\s|-\s)*")


def allowed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that shape a training run; never one that sounds like a secret."""
    told = {
        name: masked(value)[:LONGEST_VALUE]
        for name, value in environ.items()
        if (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET_NAME.search(name)
    }
    return dict(sorted(told.items()))


def masked(text: str) -> str:
    """`text` without logins in addresses, `token=...` pairs and tokens of known shape."""
    text = _URL_LOGIN.sub(r"\1%s@" % MASK, text)
    text = _KNOWN_TOKENS.sub(MASK, text)
    return _SECRET_PAIR.sub(r"\1" + MASK, text)


def masked_command(arguments: Sequence[str]) -> str:
    """A command line fit to be shown."""
    shown, hide = [], False
    for argument in arguments:
        shown.append(MASK if hide else masked(argument))
        hide = bool(_SECRET_OPTION.match(argument))
    return " ".join(shown)[:LONGEST_COMMAND]


def masked_config(text: str) -> str:
    """A YAML or JSON file with the values of secret-sounding keys hidden; tokenizer settings such as pad_token stay.

    It can still be read as what it was: a bare *** would be an alias in YAML.
    """
    shown: list[str] = []
    below: int | None = None  # what is indented deeper than this belongs to a hidden value
    listed: int | None = None  # items of a list deeper than this do
    for line in text.splitlines():
        indent = len(_INDENT.match(line).group())  # type: ignore[union-attr]
        if below is not None and (indent > below or not line.strip()):
            continue
        below = None
        listed = None if listed is not None and line.strip() and indent <= listed else listed
        found = _SECRET_LINE.match(line)
        if found is None:
            is_item = listed is not None and line.lstrip().startswith("-") and ":" not in line
            shown.append(_INDENT.match(line).group() + HIDDEN if is_item else line)  # type: ignore[union-attr]
        elif found.group(3) is None:
            shown.append(line)
            listed = indent
        else:
            shown.append(found.group(1) + found.group(2) + " " + HIDDEN + ("," if line.rstrip().endswith(",") else ""))
            below = indent
    text = _SECRET_INLINE.sub(r"\1" + HIDDEN, "\n".join(shown) + "\n")
    return _KNOWN_TOKENS.sub("<hidden>", _URL_LOGIN.sub(r"\1%s@" % MASK, text))


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
