"""The commands; the only module that prints."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Iterator, Sequence

from stepscope_agent import align, analyse, client, gate, options, settings, upload, watch
from stepscope_agent.captures import shown
from stepscope_agent.errors import INTERNAL, INTERRUPTED, OK, AgentError, AnalysisFailed, NothingToUpload
from stepscope_agent.manifest import HashCache
from stepscope_agent.progress import Progress
from stepscope_agent.spool import Spool, hold, is_held
from stepscope_agent.transport import Transport

LAYERS_DIFFER = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code. A person never sees a traceback unless STEPSCOPE_DEBUG is set."""
    try:
        asked = parser().parse_args(arguments)
        code: int = asked.command(asked)
        return code
    except AgentError as exc:
        return _fail(str(exc), exc.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on where this one stopped", INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the reader of our output has left
        return OK
    except Exception as exc:
        if os.environ.get("STEPSCOPE_DEBUG"):
            sys.excepthook(type(exc), exc, exc.__traceback__)
        return _fail("a bug in the agent: %s: %s (STEPSCOPE_DEBUG=1 shows more)" % (type(exc).__name__, exc), INTERNAL)


def script() -> None:
    """The installed command."""
    sys.exit(main())


def parser() -> argparse.ArgumentParser:
    return options.parser({"upload": _upload, "watch": _watch, "status": _status, "align": _align})


def _fail(text: str, code: int) -> int:
    say("stepscope-agent: " + text)
    return code


def say(text: str) -> None:
    """A line for the person, on standard error: standard output is for results."""
    print(shown(text), file=sys.stderr, flush=True)


def _transport(asked: argparse.Namespace, notify: Callable[[str], None]) -> Transport:
    return Transport(
        settings.setting(asked, "server"),
        settings.setting(asked, "token"),
        ca_file=asked.ca or settings.from_file(asked, "ca") or None,
        retry_for=asked.retry_for,
        deadline=None if asked.timeout is None else time.monotonic() + asked.timeout,
        notify=notify,
    )


# upload


def _upload(asked: argparse.Namespace) -> int:
    told = {name: getattr(asked, name) for name in upload.Job._fields if name != "project"}
    if asked.dry_run:
        return _list_plan(upload.plan(upload.Job(project="", **told), say, windows=settings.windows_of_this_host()))
    job = upload.Job(project=settings.setting(asked, "project"), **told)
    progress = Progress(sys.stderr)
    with contextlib.closing(_transport(asked, progress.note)) as http:
        outcome = _send(http, job, progress)
        say(_summary(outcome))
        return _judge(http, outcome, asked)


def _list_plan(planned: Sequence[upload.Planned]) -> int:
    if not planned:
        raise NothingToUpload("nothing to upload")
    for item in planned:
        told = (item.capture, item.rank, item.dump.root, len(item.files), size(item.size))
        print("%s rank %d: %s (%d files, %s)" % told)
        for entry in item.files:
            print("    %s  %s" % (entry.name, size(entry.size)))
    return OK


def _send(http: Transport, job: upload.Job, progress: Progress) -> upload.Outcome:
    cache, windows = HashCache(settings.hashes_path()), settings.windows_of_this_host()
    planned = upload.plan(job, say, cache, windows)
    cache.save()
    windows.save()
    progress.begin(len(planned), sum(item.size for item in planned))
    try:
        return upload.upload(http, job, planned, progress.add, progress.note)
    finally:
        progress.end()


def _judge(http: Transport, outcome: upload.Outcome, asked: argparse.Namespace) -> int:
    """What came of it, after waiting for the analysis where that was asked for."""
    waits = outcome.captures and (asked.wait or asked.json or asked.gate)
    captures = _report(http, outcome, asked.json) if waits else []
    if outcome.last_error is not None:
        return outcome.last_error.exit_code
    if asked.gate:
        gate.check(http, captures, asked.against, asked.strict, say if asked.json else print)
    return OK


def _summary(outcome: upload.Outcome) -> str:
    text = "%d %s arrived" % (len(outcome.dumps), "dump" if len(outcome.dumps) == 1 else "dumps")
    if outcome.steps:
        text += ", %d step records" % outcome.steps
    if outcome.failures:
        text += ", %d failed" % len(outcome.failures)
    return "%s: %s" % (text, outcome.run.get("url", ""))


def _report(http: Transport, outcome: upload.Outcome, as_json: bool) -> list[dict[str, Any]]:
    captures = upload.wait(http, outcome.captures, Progress(sys.stderr).note_once)
    failed = [capture for capture in captures if capture.get("state") == "failed"]
    if as_json:
        _print_reports(http, [capture for capture in captures if capture not in failed], len(captures) == 1)
    else:
        print("\n".join(line for capture in captures for line in _checklist(capture)))
    for capture in failed:
        say("%s: the analysis failed; see %s" % (capture.get("key"), capture.get("url")))
    if failed:
        raise AnalysisFailed("%d of %d captures could not be analysed" % (len(failed), len(captures)))
    return captures


def _print_reports(http: Transport, captures: Sequence[dict[str, Any]], single: bool) -> None:
    reports = [client.get_report(http, int(capture["id"])) for capture in captures]
    if reports:
        print(json.dumps(reports[0] if single else reports, ensure_ascii=False))


def _checklist(capture: dict[str, Any]) -> Iterator[str]:
    yield "%s %s" % (capture.get("key"), capture.get("url"))
    checklist = capture.get("checklist")
    if not isinstance(checklist, dict) or checklist.get("passed") is None:
        return  # nothing was judged: the analysis failed
    counts = tuple(checklist.get(name, "?") for name in ("passed", "failed", "unknown"))
    yield "checklist: %s passed, %s failed, %s unknown" % counts
    order = {"fail": 0, "unknown": 1, "pass": 2}
    items = [item for item in checklist.get("items") or [] if isinstance(item, dict)]
    for item in sorted(items, key=lambda item: order.get(str(item.get("status")), 3)):
        yield "  %-7s %-20s %s" % (item.get("status"), item.get("id"), item.get("summary") or "")


def size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return "%.0f %s" % (count, unit) if unit == "B" else "%.1f %s" % (count, unit)
        count /= 1000.0
    return "%.1f GB" % count


# watch


def _watch(asked: argparse.Namespace) -> int:
    for folder in asked.folders:
        if not os.path.isdir(folder):
            raise AgentError("%s is not a folder" % folder)
    watch.step_down()
    signal.signal(signal.SIGTERM, _end)
    plan, held = _plan(asked), hold(settings.state_folder())
    with held or contextlib.nullcontext(), contextlib.closing(_transport(asked, say)) as http:
        http.bytes_per_s = asked.limit_rate * 1e6 if asked.limit_rate else None
        watcher = _watcher(plan, http)
        try:
            if not asked.once:
                _watch_until_ended(watcher, asked.grace)
            watcher.once()
            watcher.finish_analyses()
        finally:
            watcher.close()
    return OK if watcher.trouble is None else watcher.trouble.exit_code


def _plan(asked: argparse.Namespace) -> watch.Plan:
    return watch.Plan(
        asked.folders,
        settings.setting(asked, "server"),
        settings.setting(asked, "project"),
        run=asked.run,
        logs=asked.log,
        poll_s=asked.every,
        quiet_s=asked.quiet,
        with_trace=asked.with_trace,
        analyse=asked.analyse,
        python=asked.python,
        analyse_limit_s=asked.analyse_limit,
        state=settings.state_folder(),
    )


def _watcher(plan: watch.Plan, http: Transport) -> watch.Watcher:
    spool = Spool(settings.spool_path())
    missing = analyse.what_is_missing(plan.python) if plan.analyse else None
    if missing:
        say("MindSpore's and torch_npu's raw dumps will fail: " + missing)
    spool.agent["folders"] = [os.path.abspath(folder) for folder in plan.folders]
    say("watching %s for project %s at %s" % (", ".join(plan.folders), plan.project, plan.server))
    return watch.Watcher(plan, http, spool, HashCache(settings.hashes_path()), say)


def _end(number: int, frame: Any) -> None:
    """SIGTERM; a second one ends at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(OK)


def _watch_until_ended(watcher: watch.Watcher, grace: float) -> None:
    try:
        watcher.run_forever()
    except SystemExit:
        if grace:
            watcher.last_look(grace)
        raise


# status


def _status(asked: argparse.Namespace) -> int:
    spool, held = Spool(settings.spool_path()), is_held(settings.state_folder())
    if asked.json:
        rows = {"dumps": spool.dumps, "logs": spool.logs, "files": spool.files}
        print(json.dumps({"agent": spool.agent, "watching": held, "counts": spool.counts(), **rows}))
        return OK
    for line in _told(spool, held):
        print(shown(line))
    return OK


def _told(spool: Spool, held: bool) -> Iterator[str]:
    folders = ", ".join(spool.agent.get("folders") or ["something"])
    yield "an agent is watching %s" % folders if held else "no agent is watching"
    if spool.agent.get("trouble"):
        yield "trouble: %s" % spool.agent["trouble"]
    for root, row in spool.dumps.items():
        told = "  ".join(str(row[name]) for name in ("url", "error") if row.get(name))
        yield "%-8s %s  %s" % (row["state"], root, told)
    for path, row in list(spool.logs.items()) + list(spool.files.items()):
        if row.get("error"):
            yield "%-8s %s  %s" % ("failed", path, row["error"])
    yield ", ".join("%d %s" % (count, state) for state, count in sorted(spool.counts().items())) or "nothing seen yet"


# align


def _align(asked: argparse.Namespace) -> int:
    ours, theirs = (align.read_recording(path) for path in (asked.ours, asked.theirs))
    evidence = align.align(ours, theirs, asked.rename, asked.tolerance)
    target = asked.output or os.path.join(os.path.dirname(os.path.abspath(asked.ours)), align.EVIDENCE)
    align.write_evidence(evidence, target)
    print("\n".join(_differences(evidence)))
    say("written to %s" % target)
    return LAYERS_DIFFER if evidence["differing"] else OK


def _differences(evidence: dict[str, Any]) -> Iterator[str]:
    for row in evidence["layers"]:
        if not row["aligned"]:
            error = row.get("relative_error")
            yield "differs  %s  %s" % (row["name"], "shape or values" if error is None else "%.3g" % error)
    yield "%d of %d outputs agree" % (evidence["compared"] - evidence["differing"], evidence["compared"])
    if evidence["first"]:
        yield "the first that differs: %s" % evidence["first"]
