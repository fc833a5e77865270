"""What can go wrong, by exit code. docs/agent.md lists them."""

from __future__ import annotations

from typing import Any

OK = 0
INTERNAL = 70
INTERRUPTED = 130


class AgentError(Exception):
    """An expected failure: its text is one clear line for a person."""

    exit_code = 2


class AnalysisFailed(AgentError):
    exit_code = 1


class NothingToUpload(AgentError):
    exit_code = 2


class FileChanged(AgentError):
    """A file was altered, cut or removed between being hashed and being sent."""

    exit_code = 2


class Unreachable(AgentError):
    exit_code = 3


class Refused(AgentError):
    """The server said no and will go on saying no: token, limit, malformed request."""

    exit_code = 4

    def __init__(self, status: int, code: str, message: str, body: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.body = body or {}


class TimedOut(AgentError):
    exit_code = 5


class GateClosed(AgentError):
    """The build is worse than its baseline."""

    exit_code = 6
