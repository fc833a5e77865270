"""The agent as people run it, against the running product: real processes, real bytes, real analysis."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.device_dumps import timeline_of
from tests.dumps import write_dump, write_job
from tests.live import ROOT, LiveProduct, live, wait_for

LLM = "msinsight-llm-pp2dp2"
EVIDENCE = "stepscope_alignment.json"
SHORT = ["--retry-for", "5"]
MAKE_TOKEN = """
import sys, django
django.setup()
from django.utils import timezone
from dashboard.accounts.models import AgentToken, Project
project, _ = Project.objects.get_or_create(slug=sys.argv[1], defaults={"name": sys.argv[1]})
token, text = AgentToken.objects.issue(project, "e2e", ["upload", "read"])
if sys.argv[2:] == ["revoked"]:
    AgentToken.objects.filter(pk=token.pk).update(revoked=timezone.now())
print(text)
"""
ASK = """
import sys, django
django.setup()
from dashboard.accounts.models import User
from dashboard.hosts import requests
from dashboard.runs.models import Run
run = Run.objects.get(key=sys.argv[1])
print(requests.ask(run, User.objects.get(username="admin"), steps=int(sys.argv[2])).pk)
"""
SEEN = """
import json, sys, django
django.setup()
from dashboard.hosts.models import Agent, CaptureRequest
if sys.argv[1] == "agents":
    print(json.dumps([{"host": a.host, "version": a.version, "spool": a.spool, "trouble": a.trouble,
                       "runs": [[r.run.key, r.step, r.via] for r in a.runs.all()]} for a in Agent.objects.all()]))
else:
    r = CaptureRequest.objects.get(pk=sys.argv[1])
    c = r.capture
    print(json.dumps({"state": r.state, "reason": r.reason, "first": r.first_step, "key": c and c.key,
                      "steps": c and [c.first_step, c.last_step], "ready": c and c.state}))
"""


@pytest.fixture(scope="module")
def product() -> Iterator[LiveProduct]:
    """Heartbeats every second."""
    with live(STEPSCOPE_HEARTBEAT_SECONDS="1") as running:
        yield running


class Done:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        assert "Traceback" not in err, err


class Host:
    """One training host: its agent's state folder and settings."""

    def __init__(self, product: LiveProduct, folder: Path, **settings: str) -> None:
        given = {"server": product.url, "token": product.token, "project": product.project, **settings}
        self.product, self.folder = product, folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT / "agents"),
            "STEPSCOPE_STATE": str(folder / "state"),
            **{f"STEPSCOPE_{name.upper()}": value for name, value in given.items()},
        }

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "stepscope_agent", *map(str, arguments)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: object, seconds: float = 180) -> Done:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=seconds)
        return Done(process.returncode, out, err)


@pytest.fixture
def host(product: LiveProduct, tmp_path: Path) -> Host:
    return Host(product, tmp_path / "host")


@pytest.fixture
def started() -> Iterator[Callable[[subprocess.Popen[Any]], None]]:
    """Processes that end with the test, however it ends."""
    running: list[subprocess.Popen[Any]] = []
    yield running.append
    for process in running:
        process.kill()
        process.communicate()


def captures(product: LiveProduct, run_key: str) -> list[dict[str, Any]]:
    status, runs = product.call("GET", f"/runs?project={product.project}&q={run_key}")
    assert status == 200
    run = next((row for row in runs["runs"] if row["key"] == run_key), None)
    listed = product.call("GET", f"/runs/{run['id']}/captures")[1]["captures"] if run else []
    return [product.call("GET", f"/captures/{row['id']}")[1]["capture"] for row in listed]


def received(product: LiveProduct) -> int:
    """Bytes of files that have not arrived whole."""
    total = 0
    for path in (product.data / "incoming").glob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def without_series_and_run(report: dict[str, Any]) -> dict[str, Any]:
    """What analysis of the same files must say wherever it runs; names and hosts of the surroundings left out."""
    return {key: report[key] for key in ("ranks", "cluster", "bottleneck", "findings")} | {
        "checklist": {key: report["checklist"][key] for key in ("passed", "failed", "unknown")},
        "items": [(item["id"], item["status"], item["value"]) for item in report["checklist"]["items"]],
    }


def report_here(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "analysis", "report", str(path), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def same_numbers(there: Any, here: Any, place: str = "report") -> None:
    if isinstance(here, dict) and isinstance(there, dict):
        assert set(there) == set(here), place
        for key in here:
            same_numbers(there[key], here[key], f"{place}.{key}")
    elif isinstance(here, list) and isinstance(there, list):
        assert len(there) == len(here), place
        for number, (one, other) in enumerate(zip(there, here, strict=True)):
            same_numbers(one, other, f"{place}[{number}]")
    elif isinstance(here, float) or isinstance(there, float):
        assert there == pytest.approx(here, rel=1e-9), place
    else:
        assert there == here, place


@pytest.mark.real
def test_a_real_dump_gives_the_report_that_the_command_line_gives(host: Host, dumps: Path) -> None:
    done = host.run("upload", dumps / LLM, "--run", "real llm", "--json")
    assert done.code == 0, done.err
    there = json.loads(done.out)
    assert [entry["rank"] for entry in there["ranks"]] == [0, 1]
    same_numbers(without_series_and_run(there), without_series_and_run(report_here(dumps / LLM)))


def test_a_synthetic_job_is_sent_analysed_and_printed(host: Host, tmp_path: Path) -> None:
    write_job(tmp_path / "job", dp=2)
    done = host.run("upload", tmp_path / "job", "--run", "synthetic", "--wait")
    assert done.code == 0, done.err
    assert "2 dumps arrived" in done.err
    assert f"{host.product.url}/captures/" in done.out and "checklist: " in done.out
    (capture,) = captures(host.product, "synthetic")
    assert capture["state"] == "ready"
    again = host.run("upload", tmp_path / "job", "--run", "synthetic", "--json")
    same_numbers(without_series_and_run(json.loads(again.out)), without_series_and_run(report_here(tmp_path / "job")))


def test_an_upload_that_is_killed_goes_on_where_it_was(host: Host, tmp_path: Path, started: Any) -> None:
    truth = write_dump(tmp_path / "job")
    (truth.folder / "FRAMEWORK").mkdir(exist_ok=True)
    (truth.folder / "FRAMEWORK" / "big_0.txt").write_bytes(os.urandom(40 * 2**20))  # cannot be packed: takes its time
    upload = ["upload", tmp_path / "job", "--run", "killed"]
    process = host.start(
        "watch", tmp_path / "job", "--run", "killed", "--quiet", "0.1", "--every", "0.1", "--limit-rate", "8"
    )
    started(process)
    wait_for(lambda: received(host.product) > 4 * 2**20, "bytes on the server")
    process.kill()
    process.wait()
    assert all(capture["state"] == "receiving" for capture in captures(host.product, "killed"))
    done = host.run(*upload, "--wait")
    assert done.code == 0, done.err
    assert captures(host.product, "killed")[0]["state"] == "ready"
    status, answer = host.product.call("GET", f"/captures/{captures(host.product, 'killed')[0]['id']}/dumps")
    assert (status, [dump["state"] for dump in answer["dumps"]]) == (200, ["digested"])


def test_an_interrupted_upload_says_how_to_go_on(host: Host, tmp_path: Path) -> None:
    truth = write_dump(tmp_path / "job")
    (truth.folder / "ASCEND_PROFILER_OUTPUT" / "memory_record.csv").write_bytes(b"x" * 200_000_000)
    process = host.start("upload", tmp_path / "job", "--run", "interrupted")
    wait_for(lambda: received(host.product) > 0, "the first bytes")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (
        130,
        "stepscope-agent: interrupted; the same command goes on where this one stopped",
    )


def test_a_revoked_token_is_told_in_one_line(product: LiveProduct, tmp_path: Path) -> None:
    write_dump(tmp_path / "job")
    host = Host(product, tmp_path / "host", token=product.python(MAKE_TOKEN, "gpt", "revoked").strip())
    done = host.run("upload", tmp_path / "job", "--run", "x")
    assert (done.code, done.err.splitlines()[-1]) == (
        4,
        "stepscope-agent: the server says: the token is unknown, expired or revoked",
    )


def test_a_project_that_is_not_the_tokens_is_not_found(product: LiveProduct, tmp_path: Path) -> None:
    write_dump(tmp_path / "job")
    token = product.python(MAKE_TOKEN, "other").strip()
    for project in ("gpt", "nowhere"):
        done = Host(product, tmp_path / "host", token=token, project=project).run(
            "upload", tmp_path / "job", "--run", "x"
        )
        assert done.code == 4
        assert "there is no such project in the projects you can reach" in done.err


def test_two_agents_at_once_send_each_dump_once(product: LiveProduct, tmp_path: Path, started: Any) -> None:
    write_job(tmp_path / "job", dp=4)
    hosts = [Host(product, tmp_path / f"host{number}") for number in range(2)]
    for one in hosts:
        started(one.start("watch", tmp_path / "job", "--run", "shared", "--quiet", "0.2", "--every", "0.2"))

    def ready() -> bool:
        found = captures(product, "shared")
        return len(found) == 1 and found[0]["state"] == "ready" and found[0]["dumps"]["digested"] == 4

    wait_for(ready, "the capture of four ranks", 120)
    counts = [json.loads(one.run("status", "--json").out)["dumps"].values() for one in hosts]
    senders = [row.get("by") for rows in counts for row in rows if row["state"] == "sent"]
    assert senders.count("another agent") == 4 and len(senders) == 8


def test_two_uploads_of_one_folder_at_once_do_not_quarrel(product: LiveProduct, tmp_path: Path) -> None:
    write_job(tmp_path / "job", dp=2)
    processes = [
        Host(product, tmp_path / f"host{number}").start("upload", tmp_path / "job", "--run", "twice", "--wait")
        for number in range(2)
    ]
    for process in processes:
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    (capture,) = captures(product, "twice")
    assert (capture["state"], capture["dumps"]["digested"]) == ("ready", 2)


def agents(product: LiveProduct) -> Any:
    return json.loads(product.python(SEEN, "agents"))


def test_a_capture_asked_for_comes_back_linked(host: Host, tmp_path: Path, started: Any) -> None:
    product = host.product
    dump, profiles = write_dump(tmp_path / "source", framework="mindspore").folder, tmp_path / "profiles"
    profiles.mkdir()
    program = [sys.executable, str(Path(__file__).with_name("fake_training.py"))]
    training = subprocess.Popen(
        [*program, str(profiles), "asked", "100000", str(dump), "0.1"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "agents")},
    )
    started(training)
    started(host.start("watch", profiles, "--every", "0.2", "--quiet", "1"))

    def in_hand() -> bool:
        return any(key == "asked" and via == "callback" for agent in agents(product) for key, _, via in agent["runs"])

    wait_for(in_hand, "the heartbeat that names the run", 90)
    agent = next(agent for agent in agents(product) if agent["runs"])
    assert (agent["host"], agent["trouble"]) == (socket.gethostname(), "")
    request = product.python(ASK, "asked", "3").strip()

    def ended() -> dict[str, Any] | None:
        seen = dict(json.loads(product.python(SEEN, request)))
        return seen if seen["state"] in ("failed", "expired") or seen["ready"] == "ready" else None

    seen = wait_for(ended, "the capture", 120)
    assert seen is not None
    assert (seen["state"], seen["key"], seen["reason"]) == ("uploaded", f"request-{request}", "")
    assert seen["steps"] == [seen["first"], seen["first"] + 2]
    assert training.poll() is None  # and the training goes on
    assert not (profiles / "stepscope_control.json").exists()


def test_a_killed_training_ends_a_request_with_a_reason(host: Host, tmp_path: Path, started: Any) -> None:
    product = host.product
    dump, profiles = write_dump(tmp_path / "source", framework="mindspore").folder, tmp_path / "profiles"
    profiles.mkdir()
    program = [sys.executable, str(Path(__file__).with_name("fake_training.py"))]
    training = subprocess.Popen(
        [*program, str(profiles), "ending", "100000", str(dump), "0.1"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "agents")},
    )
    started(training)
    started(host.start("watch", profiles, "--every", "0.2"))
    wait_for(lambda: any(row[0] == "ending" for agent in agents(product) for row in agent["runs"]), "the run", 90)
    request = product.python(ASK, "ending", "3").strip()
    wait_for(lambda: json.loads(product.python(SEEN, request))["state"] == "accepted", "word of the agent", 60)
    (profiles / "stop").touch()
    wait_for(lambda: json.loads(product.python(SEEN, request))["state"] == "failed", "the reason", 60)
    assert "the training ended before step" in json.loads(product.python(SEEN, request))["reason"]


def write_comparison(profiles: Path, value: float) -> None:
    """What `align` leaves when a layer gave `value` here and 1 there."""
    for name, one in (("ours", value), ("theirs", 1.0)):
        sample = base64.b64encode(array("f", [one, 2.0]).tobytes()).decode()
        row = {"name": "layers.0", "dtype": "float32", "shape": [2], "count": 2, "sample": sample}
        text = json.dumps({"schema": 1, "framework": "mindspore", "layers": [row]})
        (profiles.parent / f"{name}.json").write_text(text)


def alignment_of(product: LiveProduct, run_key: str) -> str | None:
    """How the checklist of the run's only capture answers weight_alignment."""
    found = captures(product, run_key)
    items = (found[0]["checklist"] or {}).get("items", []) if found else []
    return next((item["status"] for item in items if item["id"] == "weight_alignment"), None)


def test_a_comparison_left_beside_a_training_answers_the_checklist(host: Host, tmp_path: Path, started: Any) -> None:
    """It lies there before the training has said which run it is, and changes after the capture was judged."""
    dump, profiles = write_dump(tmp_path / "source", framework="mindspore").folder, tmp_path / "profiles"
    profiles.mkdir()
    align = ["align", tmp_path / "ours.json", tmp_path / "theirs.json", "--output", profiles / EVIDENCE]
    write_comparison(profiles, 1.0)
    assert host.run(*align).code == 0
    watching = host.start("watch", profiles, "--every", "0.2")
    started(watching)
    assert watching.stderr is not None
    assert "watching " in wait_for(watching.stderr.readline, "its first line")
    assert "nothing tells yet which run it is of" in wait_for(watching.stderr.readline, "a look at the comparison")
    program = [sys.executable, str(Path(__file__).with_name("fake_training.py"))]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "agents")}
    training = [*program, str(profiles), "compared", "12", str(dump), "0.01", "4"]
    assert subprocess.run(training, env=environment, timeout=60).returncode == 0
    wait_for(lambda: alignment_of(host.product, "compared") == "pass", "an item that passes", 120)
    write_comparison(profiles, 1.5)
    assert host.run(*align).code == 1
    wait_for(lambda: alignment_of(host.product, "compared") == "fail", "an item that fails", 60)
    status, runs = host.product.call("GET", f"/runs?project={host.product.project}&q=profiles")
    assert (status, runs["runs"]) == (200, [])  # and the folder's name made no run


def test_a_host_recorded_at_once_is_watched_into_a_rank_for_each_device(host: Host, tmp_path: Path) -> None:
    """Nothing in it tells a rank; its bytes go up once."""
    for label, text in {**timeline_of(0, [10, 20], 500), **timeline_of(1, [40], 700)}.items():
        (tmp_path / "job" / label).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "job" / label).write_text(text)
    (prof,) = (tmp_path / "job").iterdir()
    (prof / ".complete.json").write_text(json.dumps({"schema": 1, "state": "complete"}))
    done = host.run("watch", tmp_path, "--run", "whole host", "--once")
    assert (done.code, done.err.count("sent ")) == (0, 1), done.err

    def ranks() -> list[int] | None:
        found = captures(host.product, "whole-host")
        report = host.product.call("GET", f"/captures/{found[0]['id']}/report")[1] if found else {}
        seen = [rank["rank"] for rank in report.get("ranks") or []]
        return seen if len(seen) == 2 else None

    assert wait_for(ranks, "both ranks", 120) == [0, 1]
