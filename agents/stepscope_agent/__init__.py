"""Stepscope's agent: brings profiler dumps and step records from a training host to the server."""

from __future__ import annotations

__version__ = "0.1.0"
PROTOCOL = "1"
