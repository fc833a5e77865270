"""The callback under real training on CPU, in both modes; then the agent's upload finds what it left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
AGENTS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "agents")
sys.path[:0] = [AGENTS, os.path.join(os.path.dirname(HERE), "agents")]

from agent_double import TOKEN, Server  # noqa: E402
from stepscope_agent.captures import capture_keys  # noqa: E402
from stepscope_agent.cli import main  # noqa: E402
from stepscope_agent.discover import find_dumps  # noqa: E402
from stepscope_agent.logs import read_records_file  # noqa: E402
from stepscope_agent.manifest import entries_of  # noqa: E402


class Training:
    def __init__(self, folder, mode, callback, steps=16, environment=None, limit_s=400, **more):
        self.folder, self.mode, self.output = str(folder), mode, os.path.join(str(folder), "profiles")
        result = os.path.join(self.folder, "result.json")
        options = {"mode": mode, "steps": steps, "output": self.output, "callback": callback, "result": result}
        with open(os.path.join(self.folder, "options.json"), "w") as stream:
            json.dump({**options, **more}, stream)
        surroundings = dict(os.environ, PYTHONPATH=AGENTS, HCCL_ALGO="level0:ring", **(environment or {}))
        for name in ("RANK_ID", "RANK_SIZE"):
            surroundings.pop(name, None)
        command = [sys.executable, os.path.join(HERE, "train_gpt.py"), os.path.join(self.folder, "options.json")]
        self.done = subprocess.run(
            command + ["--hub-token", "abc123"],
            cwd=self.folder,
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        assert self.done.returncode == 0, self.done.stdout[-3000:] + self.done.stderr[-3000:]
        with open(result) as stream:
            self.result = json.load(stream)

    def dumps(self):
        return find_dumps(self.output) if os.path.isdir(self.output) else []

    def json(self, name, dump=0):
        with open(os.path.join(self.dumps()[dump].root, name)) as stream:
            return json.load(stream)


@pytest.fixture(scope="module", params=["GRAPH_MODE", "PYNATIVE_MODE"])
def training(request, tmp_path_factory):
    """16 steps, steps 6 and 7 and then 12 and 13 profiled."""
    callback = {"first_step": 6, "steps": 2, "every": 6, "loss_every": 4, "model": {"hidden": 32, "layers": 2}}
    callback["min_free_bytes"] = 0
    return Training(tmp_path_factory.mktemp(request.param), request.param, callback)


def test_each_window_leaves_one_whole_dump(training):
    dumps = training.dumps()
    assert [(dump.first_step, dump.last_step, dump.state) for dump in dumps] == [(12, 13, "whole"), (6, 7, "whole")]
    assert {(dump.kind, dump.framework, dump.rank, dump.world_size) for dump in dumps} == {
        ("ascend_ms", "mindspore", 0, 1)
    }


def test_the_agent_finds_the_dump_whole(training):
    for dump in training.dumps():
        entries, troubles = entries_of(dump)
        names = [entry.name for entry in entries]
        assert troubles == []
        for name in ("stepscope_run.json", "stepscope_steps.jsonl", ".complete.json", "profiler_metadata.json"):
            assert name in names
        assert any(name.startswith("FRAMEWORK/cpu_op_execute_timestamp") for name in names)
        assert all(entry.size > 0 for entry in entries)


def test_captures_are_named_by_the_training_step(training):
    assert sorted(capture_keys(training.dumps()).values()) == ["step-12", "step-6"]


def test_the_marker_says_complete(training):
    marker = training.json(".complete.json", dump=1)
    written = marker.pop("written_at")
    assert len(written) == len("2026-01-01T12:00:00Z")
    assert marker == {
        "schema": 1,
        "state": "complete",
        "first_step": 6,
        "last_step": 7,
        "rank": 0,
        "world_size": 1,
        "reason": None,
    }


def test_run_metadata_tells_mode_versions_and_model(training):
    meta = training.json("stepscope_run.json")
    assert meta["framework"] == "mindspore"
    assert meta["framework_version"].startswith("2.10")
    assert meta["mode"] == {"GRAPH_MODE": "graph", "PYNATIVE_MODE": "pynative"}[training.mode]
    assert meta["sink"] is False
    assert meta["device_target"] == "CPU"
    assert (meta["cann_version"], meta["soc"]) == (None, None)
    assert "jit_level" in meta
    assert meta["parallel"] == {"dp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1}
    assert (meta["rank"], meta["world_size"], meta["host"]) == (0, 1, socket.gethostname())
    assert meta["window"] == {"first_step": 12, "last_step": 13}
    assert meta["environment"]["HCCL_ALGO"] == "level0:ring"
    assert meta["model"]["parameters"] == training.result["parameters"]
    assert (meta["model"]["network"], meta["model"]["optimizer"]) == ("GPT", "AdamWeightDecay")
    assert (meta["model"]["hidden"], meta["model"]["layers"]) == (32, 2)
    assert meta["data"] == {"batches": 16, "batch_size": 2}


def test_secrets_on_the_command_line_are_masked(training):
    command = training.json("stepscope_run.json")["command"]
    assert "train_gpt.py" in command
    assert command.endswith("--hub-token ***")


def test_every_step_is_recorded_with_its_time(training):
    records = read_records_file(os.path.join(training.output, "stepscope_steps_rank_0.jsonl"))
    assert [record["step"] for record in records] == list(range(1, 17))
    assert all(record["step_time_ms"] > record["data_wait_ms"] >= 0 for record in records)
    assert sum(record["step_time_ms"] for record in records) / 1e3 < training.result["seconds"]


def test_the_loss_is_the_trainings_own_where_it_was_fetched(training):
    records = read_records_file(os.path.join(training.output, "stepscope_steps_rank_0.jsonl"))
    losses = {record["step"]: record["loss"] for record in records if "loss" in record}
    # every fourth step, the step before each window (5, 11) and the last of each (7, 13)
    assert sorted(losses) == [4, 5, 7, 8, 11, 12, 13, 16]
    assert losses == {step: pytest.approx(training.result["losses"][str(step)]) for step in losses}


def test_a_dump_carries_the_records_up_to_its_window(training):
    records = read_records_file(os.path.join(training.dumps()[1].root, "stepscope_steps.jsonl"))
    assert [record["step"] for record in records] == list(range(1, 8))


def test_the_profile_holds_the_windows_steps_only(training):
    root = training.dumps()[1].root
    with open(os.path.join(root, "FRAMEWORK", "cpu_op_execute_timestamp_0.txt")) as stream:
        runs = [len(row.split(";")[2].split()) for row in stream if "AdamWeightDecay" in row]
    # each optimiser kernel ran once a step; PyNative may launch the last ones of a step a moment late
    assert set(runs) <= {1, 2}
    assert runs.count(2) >= 0.9 * len(runs) > 0


def test_upload_carries_dumps_metadata_and_records(training, monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_STATE", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    try:
        given = ["--run", "tiny", "--server", server.url, "--token", TOKEN, "--project", "demo"]
        assert main(["upload", training.output] + given) == 0
    finally:
        server.stop()
    assert server.state.runs["tiny"]["meta"]["mode"] in ("graph", "pynative")
    assert sorted(dump["capture"] for dump in server.state.dumps.values()) == ["step-12", "step-6"]
    assert len(server.state.steps["callback"]) == 16


def test_raw_windows_are_marked_raw_and_limited(tmp_path):
    callback = {"first_step": 4, "steps": 1, "every": 2, "analyse": False, "keep_raw": 2, "min_free_bytes": 0}
    training = Training(tmp_path, "GRAPH_MODE", callback, steps=12)
    assert [dump.state for dump in training.dumps()] == ["raw", "raw"]
    assert "2 raw ones wait" in training.done.stderr


def test_mindspores_own_analysis_is_run_and_its_refusal_told(tmp_path):
    """The real program takes dumps of an NPU only, and ends without an error when it fails."""
    callback = {"first_step": 4, "steps": 2, "analyse": False, "min_free_bytes": 0, "run": "raw"}
    training = Training(tmp_path, "GRAPH_MODE", callback, steps=8)
    (raw,) = training.dumps()
    assert (raw.state, os.path.exists(os.path.join(raw.root, "ASCEND_PROFILER_OUTPUT"))) == ("raw", False)
    before = sorted(os.listdir(os.path.join(raw.root, "FRAMEWORK")))
    server = Server()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": AGENTS, "STEPSCOPE_STATE": str(tmp_path / "state")}
    environment.update(STEPSCOPE_SERVER=server.url, STEPSCOPE_TOKEN=TOKEN, STEPSCOPE_PROJECT="demo")
    command = [sys.executable, "-m", "stepscope_agent", "watch", training.output, "--once", "--analyse"]
    try:
        done = subprocess.run(
            command + ["--python", sys.executable], env=environment, capture_output=True, text=True, timeout=400
        )
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    (dump,) = training.dumps()
    assert (dump.state, dump.marker["state"]) == ("failed", "failed")
    assert "Cannot find profiler_info.json" in dump.marker["reason"]
    assert sorted(os.listdir(os.path.join(raw.root, "FRAMEWORK"))) == before  # the raw data stay


def test_the_callback_stands_aside_for_the_users_profiler(tmp_path):
    callback = {"first_step": 4, "steps": 2, "min_free_bytes": 0}
    training = Training(tmp_path, "GRAPH_MODE", callback, steps=8, environment={"PROFILING_MODE": "dynamic"})
    assert training.dumps() == []
    assert "PROFILING_MODE profiles this training" in training.done.stderr
    assert len(read_records_file(os.path.join(training.output, "stepscope_steps_rank_0.jsonl"))) == 8


def test_a_full_disk_skips_windows_and_training_goes_on(tmp_path):
    callback = {"first_step": 4, "steps": 2, "min_free_bytes": 10**18}
    training = Training(tmp_path, "GRAPH_MODE", callback, steps=8)
    assert training.dumps() == []
    assert "windows are skipped" in training.done.stderr


def test_an_output_folder_that_cannot_be_made_does_not_stop_training(tmp_path):
    (tmp_path / "profiles").write_text("a file where the folder should be")
    training = Training(tmp_path, "GRAPH_MODE", {"first_step": 4, "steps": 1, "every": 2}, steps=12)
    assert len(training.result["losses"]) == 12
    told = "windows are skipped: nothing can be written to %s" % (tmp_path / "profiles")
    assert training.done.stderr.count(told) == 1  # and would begin once it can be
    assert "turned itself off" not in training.done.stderr


def test_the_scope_map_names_the_layer_of_backward_kernels(tmp_path):
    callback = {"first_step": 4, "steps": 1, "min_free_bytes": 0, "scope_map": True}
    training = Training(tmp_path, "GRAPH_MODE", callback, steps=6, environment={"TMPDIR": str(tmp_path)})
    kernels = training.json("scope_map.json")["kernels"]
    layers = {row["layer"] for row in kernels.values() if row["pass"] == "backward"}
    assert {0, 1} <= layers
    names = [entry.name for entry in entries_of(training.dumps()[0])[0]]
    assert "scope_map.json" in names
    left = [name for name in os.listdir(str(tmp_path)) if name.startswith("stepscope-graphs-")]
    assert left == []  # the graphs quote the model's source and are gone


def test_watch_carries_windows_while_training_goes_on(tmp_path):
    server = Server()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": AGENTS, "STEPSCOPE_STATE": str(tmp_path / "state")}
    environment.update(STEPSCOPE_SERVER=server.url, STEPSCOPE_TOKEN=TOKEN, STEPSCOPE_PROJECT="demo")
    os.makedirs(str(tmp_path / "profiles"))
    command = [sys.executable, "-m", "stepscope_agent", "watch", str(tmp_path / "profiles"), "--every", "0.2"]
    watching = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        callback = {"first_step": 4, "steps": 2, "every": 4, "min_free_bytes": 0, "run": "Tiny GPT"}
        Training(tmp_path, "GRAPH_MODE", callback, steps=10)
        deadline = time.time() + 60
        while len(server.state.steps.get("callback", {})) < 10 or len(uploaded(server)) < 2:
            assert time.time() < deadline, (server.state.steps, uploaded(server))
            time.sleep(0.1)
    finally:
        watching.terminate()
        watching.wait(30)
        server.stop()
    assert uploaded(server) == ["step-4", "step-8"]
    assert server.state.runs["Tiny-GPT"]["meta"]["mode"] == "graph"


def test_a_window_asked_for_is_recorded_while_training_goes_on(tmp_path):
    server = Server()
    row = {"id": 7, "run_key": "Tiny-GPT", "kind": "next", "first_step": None, "steps": 2, "ranks": None}
    server.state.requests.append(dict(row, level="Level1", state="requested", lead_s=15))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": AGENTS, "STEPSCOPE_STATE": str(tmp_path / "state")}
    environment.update(STEPSCOPE_SERVER=server.url, STEPSCOPE_TOKEN=TOKEN, STEPSCOPE_PROJECT="demo")
    os.makedirs(str(tmp_path / "profiles"))
    command = [sys.executable, "-m", "stepscope_agent", "watch", str(tmp_path / "profiles"), "--every", "0.5"]
    watching = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    stop = tmp_path / "stop"
    ender = threading.Thread(target=touch_when_over, args=(server, stop), daemon=True)
    ender.start()
    try:
        callback = {"first_step": 10**6, "steps": 2, "min_free_bytes": 0, "run": "Tiny GPT", "loss_every": 100}
        training = Training(tmp_path, "GRAPH_MODE", callback, steps=60000, stop=str(stop))
    finally:
        watching.terminate()
        watching.wait(30)
        server.stop()
    assert [state for _, state, _ in server.state.reports] == ["accepted", "collecting", "uploaded"]
    assert uploaded(server) == ["request-7"]
    first = server.state.requests[0]["first_step"]
    assert [(dump.first_step, dump.last_step) for dump in training.dumps()] == [(first, first + 1)]


def touch_when_over(server, stop):
    deadline = time.time() + 300
    while server.state.requests[0]["state"] not in ("uploaded", "failed") and time.time() < deadline:
        time.sleep(0.2)
    stop.touch()


def uploaded(server):
    return sorted(dump["capture"] for dump in server.state.dumps.values() if dump["state"] == "uploaded")
