"""Real training on CPU under the callback while `watch` runs against the running product: what the dashboard shows."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
from array import array

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

from test_callback import AGENTS, Training  # noqa: E402

SERVER_PYTHON = os.environ.get("STEPSCOPE_SERVER_PYTHON") or os.path.join(ROOT, ".venv", "bin", "python")
ASK = """
import sys, django
django.setup()
from dashboard.accounts.models import User
from dashboard.hosts import requests
from dashboard.runs.models import Run
print(requests.ask(Run.objects.get(key=sys.argv[1]), User.objects.get(username="admin"), steps=2).pk)
"""
LOOK = """
import json, sys, django
django.setup()
from dashboard.hosts.models import AgentRun, CaptureRequest
from dashboard.runs.models import Run, StepRecord
run = Run.objects.filter(key=sys.argv[1]).first()
print(json.dumps(run and {
    "meta": run.meta, "reference": run.is_reference,
    "in_hand": [row.via for row in AgentRun.objects.filter(run=run)],
    "requests": [[r.state, r.reason, r.first_step, r.capture and r.capture.key]
                 for r in CaptureRequest.objects.filter(run=run)],
    "captures": {c.key: [c.state, c.first_step, c.last_step, c.error] for c in run.captures.all()},
    "checklist": {c.key: {i["id"]: i["status"] for i in ((c.report or {}).get("checklist") or {}).get("items", [])}
                  for c in run.captures.all()},
    "steps": list(StepRecord.objects.filter(run=run).order_by("step").values_list("step", "loss", "step_time_ns")),
}))
"""
PAGES = """
import json, sys, django
django.setup()
from django.test import Client
from dashboard.accounts.models import User
from dashboard.runs.models import Run
client = Client(headers={"host": "127.0.0.1"})
client.force_login(User.objects.get(username="admin"))
run = Run.objects.get(key=sys.argv[1])
pages = [run.get_absolute_url()] + [c.get_absolute_url() for c in run.captures.order_by("id")]
answers = [client.get(page) for page in pages + ["/projects/gpt/hosts/"]]
print(json.dumps([[a.status_code, a.content.decode()] for a in answers]))
"""


class Product:
    """The running product, in the server's own environment."""

    def __init__(self):
        command = [SERVER_PYTHON, os.path.join(HERE, "live_server.py")]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_without_python_path()
        )
        self.address = self._read()

    def run(self, code, *arguments):
        print(json.dumps({"code": code, "arguments": arguments}), file=self.process.stdin, flush=True)
        return self._read()

    def look(self, run):
        return json.loads(self.run(LOOK, run))

    def _read(self):
        line = self.process.stdout.readline()
        assert line, f"the server did not start; is {SERVER_PYTHON} there? `make test-mindspore` makes it"
        return json.loads(line)

    def stop(self):
        self.process.stdin.close()
        self.process.wait(60)


def _without_python_path():
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def product():
    running = Product()
    yield running
    running.stop()


def wait_for(condition, what, seconds=400):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"waited {seconds} s for {what}")


class Host:
    """A training host: `watch` over the profiles of a training that goes on until it is told to stop."""

    def __init__(self, folder, product):
        self.folder, self.stop_file = folder, folder / "stop"
        (folder / "profiles").mkdir()
        address = {"STEPSCOPE_" + name.upper(): product.address[key] for name, key in
                   (("server", "url"), ("token", "token"), ("project", "project"))}  # fmt: skip
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": AGENTS, "STEPSCOPE_STATE": str(folder / "state")}
        command = [sys.executable, "-m", "stepscope_agent", "watch", str(folder / "profiles"), "--every", "0.5"]
        self.watch = subprocess.Popen(command, env={**environment, **address}, stderr=subprocess.DEVNULL)
        self.training = self.thread = None

    def train(self, mode, callback, steps):
        def run():
            self.training = Training(self.folder, mode, callback, steps=steps, stop=str(self.stop_file), limit_s=1200)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def end_training(self):
        self.stop_file.touch()
        if self.thread is not None:
            self.thread.join(300)

    def close(self):
        self.end_training()
        self.watch.terminate()
        self.watch.wait(30)


@pytest.fixture
def host(tmp_path, product):
    one = Host(tmp_path, product)
    yield one
    one.close()


@pytest.mark.parametrize("mode", ["GRAPH_MODE", "PYNATIVE_MODE"])
def test_the_dashboard_shows_a_training_and_the_capture_asked_of_it(host, product, mode):
    run = "live-" + mode.split("_")[0].lower()
    callback = {"first_step": 6, "steps": 2, "min_free_bytes": 0, "run": run, "loss_every": 5}
    host.train(mode, callback, steps=100000)
    wait_for(lambda: (product.look(run) or {}).get("in_hand") == ["callback"], "word of the training")
    request = product.run(ASK, run).strip()

    def over():
        seen = product.look(run)
        states = [state for state, *_ in seen["captures"].values()]
        return len(states) == 2 and set(states) <= {"ready", "failed"} and seen

    seen = wait_for(over, "both captures")
    host.end_training()
    assert host.training.result["losses"]  # it went on to its own end
    (state, reason, first, key), = seen["requests"]  # fmt: skip
    assert (state, reason, key) == ("uploaded", "", "request-" + request)
    own = 6 if "step-6" in seen["captures"] else first + 2  # on a busy machine the one asked for may come first
    assert seen["captures"] == {f"step-{own}": ["ready", own, own + 1, ""], key: ["ready", first, first + 1, ""]}
    meta = seen["meta"]
    assert (meta["mode"], meta["framework"]) == (mode.split("_")[0].lower(), "mindspore")
    assert meta["framework_version"].startswith("2.10")
    assert meta["model"]["network"] == "GPT"

    def series():
        steps = product.look(run)["steps"]
        return steps if steps and steps[-1][0] >= first else None

    steps = wait_for(series, "the series")
    assert [step for step, _, _ in steps] == list(range(1, len(steps) + 1))
    losses = {step: loss for step, loss, _ in steps if loss is not None}
    known = {int(step): loss for step, loss in host.training.result["losses"].items()}
    assert len(losses) > 2 and losses == {step: pytest.approx(known[step]) for step in losses}
    assert all(time_ns > 0 for _, _, time_ns in steps)
    pages = json.loads(product.run(PAGES, run))
    assert [status for status, _ in pages] == [200] * 4
    page, hosts = pages[0][1], pages[-1][1]
    assert run in page and "/captures/" in page and "2.10" in page
    assert socket.gethostname() in hosts


def test_a_fixed_data_run_is_judged_against_the_reference(tmp_path_factory, product):
    """Two runs of one seed agree; one with another learning rate does not."""
    options = {"first_step": 110, "steps": 1, "min_free_bytes": 0, "precision_steps": 105}
    for run, more, rate in (("exact-reference", {"reference": True}, 1e-3), ("exact", {}, 1e-3), ("drift", {}, 3e-2)):
        host = Host(tmp_path_factory.mktemp(run), product)
        try:
            host.training = Training(host.folder, "GRAPH_MODE", {**options, **more, "run": run}, steps=112, rate=rate)
            wait_for(
                lambda run=run: (
                    [s for s, *_ in ((product.look(run) or {}).get("captures") or {}).values()] == ["ready"]
                ),
                run,
            )
            if more:
                wait_for(lambda run=run: product.look(run)["reference"], "the reference")
        finally:
            host.close()

    def judged(run, status):
        return lambda: product.look(run)["checklist"]["step-110"].get("precision_regression") == status

    wait_for(judged("exact", "pass"), "the run that follows the reference")
    wait_for(judged("drift", "fail"), "the run that does not")


def test_a_layer_comparison_answers_weight_alignment(host, product):
    """As `align` leaves it in the folder of a training: even before the training has told its name."""
    compare(host.folder, 1.0)
    host.train("GRAPH_MODE", {"first_step": 6, "steps": 2, "min_free_bytes": 0, "run": "aligned"}, steps=12)

    def told(status):
        def condition():
            items = ((product.look("aligned") or {}).get("checklist") or {}).get("step-6") or {}
            return items.get("weight_alignment") == status

        return condition

    wait_for(told("pass"), "an item that passes")
    host.thread.join(300)  # it ends by itself
    compare(host.folder, 1.5)
    wait_for(told("fail"), "an item that fails")


def compare(folder, value):
    """What `align` finds between a recording that holds `value` and one that holds 1."""
    from stepscope_agent import align

    read = [align.read_recording(write_recording(folder / name, one)) for name, one in (("a", value), ("b", 1.0))]
    align.write_evidence(align.align(*read), str(folder / "profiles" / align.EVIDENCE))


def write_recording(path, value):
    sample = base64.b64encode(array("f", [value, 2.0]).tobytes()).decode()
    row = {"name": "layers.0", "dtype": "float32", "shape": [2], "count": 2, "sample": sample}
    path.write_text(json.dumps({"schema": 1, "framework": "mindspore", "layers": [row]}))
    return str(path)
