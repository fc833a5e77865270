"""Captures that people ask for on a run's page, carried out: asked of the training, followed, reported on.

The state of each stands in the spool, so that a restarted agent goes on with it.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, Callable, Sequence

from stepscope_agent import client, control
from stepscope_agent.activity import Training
from stepscope_agent.discover import read_json
from stepscope_agent.manifest import write_json
from stepscope_agent.spool import FAILED as NOT_SENT
from stepscope_agent.spool import SENT, SKIPPED, Spool
from stepscope_agent.transport import Transport

ACCEPTED, COLLECTING, UPLOADED, FAILED = "accepted", "collecting", "uploaded", "failed"
UNKNOWN_PACE_STEPS = 20
NO_ANSWER_S = 60.0
AFTER_END_S = 600.0
"""How long a dump may take to appear once its steps are over."""
LEVELS = {"Level0": 0, "Level1": 1, "Level2": 2}


class Requests:
    def __init__(
        self,
        http: Transport,
        spool: Spool,
        agent: str,
        analyse: bool,
        tell: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.http, self.spool, self.agent, self.analyse, self.tell, self.now = http, spool, agent, analyse, tell, now

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Requests in hand by id, as text: they live in a JSON file."""
        jobs: dict[str, dict[str, Any]] = self.spool.agent.setdefault("requests", {})
        return jobs

    def take(self, asked: Sequence[dict[str, Any]], trainings: Sequence[Training]) -> None:
        """What the server wants now: new requests begin, those it no longer names are dropped."""
        wanted = {str(row.get("id")): row for row in asked if type(row.get("id")) is int}
        told = {training.key for training in trainings}  # of other runs the server says nothing
        for name in [name for name, job in self.jobs.items() if name not in wanted and job["run_key"] in told]:
            self._drop(name)
        for name, row in wanted.items():
            if name not in self.jobs:
                training = next((one for one in trainings if one.key == row.get("run_key")), None)
                if training is not None and not _too_early(row, training):
                    self._begin(row, training)

    def follow(self, trainings: Sequence[Training]) -> None:
        """How each request in hand is doing."""
        for name, job in list(self.jobs.items()):
            training = next((one for one in trainings if one.key == job["run_key"]), None)
            state, reason = self._state(job, training)
            if state != job["state"]:
                self._report(name, job, state, reason)

    def arrived(self, request: int) -> None:
        """A dump of this request was sent; told here when the request is no longer in hand, as after a restart."""
        if str(request) not in self.jobs:
            client.report_request(self.http, request, {"agent": self.agent, "state": UPLOADED})

    def _begin(self, row: dict[str, Any], training: Training) -> None:
        job: dict[str, Any] = {name: row.get(name) for name in ("id", "run_key", "steps", "ranks", "level")}
        job.update(state="", via=training.via, outputs=training.outputs, dynamic=training.dynamic)
        first, obstacle = _first_step(row, training)
        if obstacle:
            self._report(str(row["id"]), job, FAILED, obstacle)
            return
        answer = self._report(str(row["id"]), job, ACCEPTED, "", first_step=first)
        if answer is None or answer.get("state") not in (ACCEPTED, COLLECTING):
            return
        job["first_step"] = answer.get("first_step") or first
        job["written_at"] = self.now()
        try:
            self._ask_training(job)
        except OSError as exc:
            self._report(str(row["id"]), job, FAILED, "cannot write %s: %s" % (exc.filename, exc.strerror))
            return
        self.jobs[str(row["id"])] = job
        self.spool.save()
        self.tell("request %s: steps %d to %d" % (row["id"], first, first + int(job["steps"]) - 1))

    def _ask_training(self, job: dict[str, Any]) -> None:
        if job["via"] == "dynamic":
            write_json(job["dynamic"], _dynamic_config(job, self.analyse))
            return
        wish = control.Wish(job["id"], job["first_step"], job["steps"], job["ranks"], job["level"])
        for folder in job["outputs"]:
            write_json(os.path.join(folder, control.CONTROL), wish.row())

    def _state(self, job: dict[str, Any], training: Training | None) -> tuple[str, str]:
        rows = [row for row in self.spool.dumps.values() if row.get("request") == job["id"]]
        answers = _answers(job)
        states = [answer.get("state") for answer in answers]
        at_work = control.WAITING in states or control.COLLECTING in states
        if rows and not at_work and all(row["state"] in (SENT, SKIPPED, NOT_SENT) for row in rows):
            if any(row["state"] == SENT for row in rows):
                return UPLOADED, ""
            if all(row["state"] == SKIPPED for row in rows):
                return FAILED, str(rows[-1].get("error"))
        if control.COLLECTING in states or rows or control.DONE in states:
            if not rows and not at_work and self._waited(job, "ended_at") > AFTER_END_S:
                return FAILED, "the training recorded the window, but no dump of it was found"
            return COLLECTING, ""
        if control.FAILED in states and not at_work:
            return FAILED, str(next(one for one in answers if one.get("state") == control.FAILED).get("reason"))
        if training is None:
            return FAILED, "the training ended before step %d" % job["first_step"]
        if job["via"] == "callback" and not answers and self.now() - job["written_at"] > NO_ANSWER_S:
            return FAILED, "the callback did not answer in %d s" % NO_ANSWER_S
        if job["via"] == "dynamic" and (training.step or 0) > job["first_step"] + job["steps"]:
            if os.path.isdir(_dynamic_output(job)):
                return COLLECTING, ""
            if self._waited(job, "ended_at") > NO_ANSWER_S:
                return FAILED, "DynamicProfilerMonitor recorded nothing; does it look at %s?" % job["dynamic"]
        return str(job["state"]), ""

    def _waited(self, job: dict[str, Any], name: str) -> float:
        """Seconds since this was first asked."""
        return float(self.now() - job.setdefault(name, self.now()))

    def _report(
        self, name: str, job: dict[str, Any], state: str, reason: str, first_step: int | None = None
    ) -> dict[str, Any] | None:
        """The request as the server sees it now; None when it could not be told, which the next pass does again."""
        payload: dict[str, Any] = {"agent": self.agent, "state": state, "reason": reason[:2000]}
        if first_step is not None:
            payload["first_step"] = first_step
        answer = client.report_request(self.http, int(name), payload)
        if answer is None:
            return None
        job["state"] = state
        if state in (UPLOADED, FAILED) or answer.get("state") not in (ACCEPTED, COLLECTING):
            self._drop(name)
            self.tell("request %s: %s%s" % (name, state, ": " + reason if reason else ""))
        return answer

    def _drop(self, name: str) -> None:
        job = self.jobs.pop(name, {})
        for folder in job.get("outputs") or []:
            path = os.path.join(folder, control.CONTROL)
            if read_json(path).get("request") == job.get("id"):
                try:
                    os.unlink(path)
                except OSError:
                    pass


def _too_early(row: dict[str, Any], training: Training) -> bool:
    """A callback tells the pace after its first steps; before, nobody knows how many go by while ranks are told."""
    return training.via == "callback" and training.step_time_s is None and type(row.get("first_step")) is not int


def _first_step(row: dict[str, Any], training: Training) -> tuple[int, str]:
    """Where the window begins, far enough ahead for all ranks to hear of it; or why it cannot."""
    if training.via is None:
        others = {str(one["stranger"]) for one in training.statuses if one.get("stranger")}
        if others:
            return 0, "%s profiles this training" % ", ".join(sorted(others))
        return 0, "this training runs neither StepscopeCallback nor DynamicProfilerMonitor in a watched folder"
    if training.step is None:
        return 0, "how far the training is cannot be told: let the agent follow its log"
    first = row.get("first_step")
    if type(first) is int:
        passed = "step %d has passed: the training is at %d" % (first, training.step)
        return first, "" if first > training.step + 1 else passed
    lead_s = float(row.get("lead_s") or 15) + control.STATUS_S
    steps = math.ceil(lead_s / training.step_time_s) if training.step_time_s else UNKNOWN_PACE_STEPS
    return training.step + steps + 2, ""


def _answers(job: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank that was asked says of the request."""
    found = []
    for folder in job["outputs"] if job["via"] == "callback" else []:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in filter(control.STATUS_NAME.match, names):
            answer = read_json(os.path.join(folder, name)).get("request")
            if isinstance(answer, dict) and answer.get("id") == job["id"] and answer.get("state") != control.NOT_ASKED:
                found.append(answer)
    return found


def _dynamic_output(job: dict[str, Any]) -> str:
    return os.path.join(os.path.dirname(job["dynamic"]), "request_%d" % job["id"])


def _dynamic_config(job: dict[str, Any], analyse_here: bool) -> dict[str, Any]:
    """The user's own settings with the window asked for; an older MindSpore knows levels by number alone."""
    config = read_json(job["dynamic"])
    level = job["level"] if isinstance(config.get("profiler_level"), str) else LEVELS.get(str(job["level"]), 1)
    config.update(start_step=job["first_step"], stop_step=job["first_step"] + job["steps"] - 1, profiler_level=level)
    config.update(prof_path=_dynamic_output(job), analyse=bool(config.get("analyse")) or not analyse_here)
    return config
