"""Whether a pipeline of builds may go on: the server holds the captures just sent against a baseline."""

from __future__ import annotations

import urllib.parse
from typing import Any, Callable, Sequence

from stepscope_agent.errors import GateClosed, Refused
from stepscope_agent.transport import Transport

OPEN = ("pass",)
DOUBTFUL = ("unsure", "unknown")
ORDER = ("fail", "unsure", "unknown", "pass")


def check(
    http: Transport, captures: Sequence[dict[str, Any]], against: str, strict: bool, show: Callable[[str], None]
) -> None:
    """Shows each capture's verdict. Raises GateClosed where one fails; with `strict` where one is not known to pass."""
    closed = []
    for capture in captures:
        answer = ask(http, int(capture["id"]), against)
        verdict = str(answer.get("verdict"))
        for line in described(str(capture.get("key")), answer):
            show(line)
        if verdict not in OPEN and (strict or verdict not in DOUBTFUL):
            closed.append("%s: %s" % (capture.get("key"), verdict))
    if closed:
        raise GateClosed("the gate is closed (%s); see %s" % (", ".join(closed), captures[0].get("url")))


def ask(http: Transport, capture_id: int, against: str) -> dict[str, Any]:
    """The server's verdict. Raises Refused where the server is too old to have one."""
    query = "?" + urllib.parse.urlencode({"against": against}) if against else ""
    answer = http.call("GET", "/captures/%d/gate%s" % (capture_id, query)).json().get("gate")
    if not isinstance(answer, dict):
        raise Refused(404, "bad_answer", "this server knows no gate; it must be newer")
    return answer


def described(capture: str, answer: dict[str, Any]) -> list[str]:
    """Lines for a person: the verdict and its baseline, then the rules, those that fail first."""
    baseline = [one for one in answer.get("baseline") or [] if isinstance(one, dict)]
    names = ", ".join("%s %s" % (one.get("run"), one.get("key")) for one in baseline)
    lines = ["gate %s: %s, against %s" % (capture, answer.get("verdict"), names or "nothing: no comparable capture")]
    rules = [rule for rule in answer.get("rules") or [] if isinstance(rule, dict)]
    for rule in sorted(rules, key=lambda rule: ORDER.index(rule["status"]) if rule.get("status") in ORDER else 0):
        lines.append("  %-7s %-20s %s" % (rule.get("status"), rule.get("metric"), rule.get("text") or ""))
        if rule.get("cause") and rule.get("status") in ("fail", "unsure"):
            lines.append("  %s%s" % (" " * 29, rule["cause"]))
    if any(rule.get("status") == "unsure" and _assumed(rule) for rule in rules):
        lines.append("  how far steps lie apart is assumed: a log (--log), or profiles of three steps, would tell")
    return lines


def _assumed(rule: dict[str, Any]) -> bool:
    noise = rule.get("noise")
    return isinstance(noise, dict) and noise.get("source") == "assumed"
