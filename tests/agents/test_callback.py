"""The callback's own logic, with a stand-in for MindSpore. Real training is in tests/mindspore."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest
from stepscope_agent.logs import read_records_file
from stepscope_agent.mindspore import StepscopeCallback
from stepscope_agent.mindspore_api import MindSporeApi
from stepscope_agent.records import FULL_BYTES, RecordFile
from stepscope_agent.writer import Writer, pause_after


class Recording:
    def __init__(self, api, folder, steps):
        self.api, self.folder, self.steps, self.seen = api, folder, steps, 0

    def add_metadata(self, key, value):
        self.metadata = (key, value)

    def step(self):
        self.seen += 1
        if self.api.broken == "step":
            raise OSError("no space left on device")

    def finish(self):
        if self.api.broken == "finish":
            return []
        root = os.path.join(self.folder, "host_rank%d_1_20260101120000123_ascend_ms" % self.api.own_rank)
        os.makedirs(root)
        if self.api.analysed:
            os.makedirs(os.path.join(root, "ASCEND_PROFILER_OUTPUT"))
            open(os.path.join(root, "ASCEND_PROFILER_OUTPUT", "kernel_details.csv"), "w").close()
        return [root]


class Api:
    """What the callback asks of MindSpore, answered from attributes."""

    def __init__(self, rank=0, world_size=1, pp=1, target="CPU", analysed=True, broken=None, stranger=None):
        self.own_rank, self.size, self.pp, self.target = rank, world_size, pp, target
        self.analysed, self.broken, self.stranger = analysed, broken, stranger
        self.recordings, self.fetched, self.at_work = [], [], None

    def rank(self):
        return self.own_rank

    def world_size(self):
        return self.size

    def device_target(self):
        return self.target

    def facts(self, params):
        return {
            "framework": "mindspore",
            "mode": "graph",
            "parallel": {"pp": self.pp},
            "sink": bool(params.get("dataset_sink_mode")),
        }

    def profiler_at_work(self):
        return self.at_work

    twin = MindSporeApi.twin
    steps_before = MindSporeApi.steps_before

    def someone_elses_profiler(self, params, own):
        return self.stranger

    def start(self, folder, worker, steps, options):
        if self.broken == "start":
            raise RuntimeError("profiler busy")
        self.recordings.append(Recording(self, folder, steps))
        self.options = options
        return self.recordings[-1]

    def number(self, value):
        self.fetched.append(value)
        return value


class Context:
    def __init__(self, **params):
        self.params = params

    def original_args(self):
        return self.params


def train(callback, steps, grown=1, start=0, outputs=lambda step: step * 0.5, epoch=None, **params):
    """Calls the hooks as Model.train does: `grown` steps a call under sink, all of them in `epoch`."""
    context = Context(cur_step_num=start, dataset_sink_mode=grown > 1, batch_num=steps, **params)
    callback.on_train_begin(context)
    if epoch is not None:
        context.params["cur_epoch_num"] = epoch
        callback.on_train_epoch_begin(context)
    for step in range(start + grown, start + steps + 1, grown):
        context.params["cur_step_num"] = step
        callback.on_train_step_begin(context)
        context.params["net_outputs"] = outputs(step)
        callback.on_train_step_end(context)
    callback.on_train_end(context)


def made(tmp_path, api, **options):
    return StepscopeCallback(str(tmp_path), min_free_bytes=0, api=api, **options)


def markers(tmp_path):
    found = []
    for window in sorted(os.listdir(str(tmp_path))):
        for folder in sorted(os.listdir(str(tmp_path / window))) if window.startswith("step_") else []:
            with open(str(tmp_path / window / folder / ".complete.json")) as stream:
                marker = json.load(stream)
            found.append((marker["first_step"], marker["last_step"], marker["state"]))
    return found


def test_windows_repeat_every_so_many_steps(tmp_path):
    train(made(tmp_path, Api(), first_step=10, steps=3, every=20), 55)
    assert markers(tmp_path) == [(10, 12, "complete"), (30, 32, "complete"), (50, 52, "complete")]


def test_one_window_without_every(tmp_path):
    api = Api()
    train(made(tmp_path, api, first_step=10, steps=3), 55)
    assert [(one.steps, one.seen) for one in api.recordings] == [(3, 3)]
    assert api.recordings[0].metadata == ("stepscope", {"rank": 0, "first_step": 10, "last_step": 12})


def test_a_resumed_training_takes_the_next_window(tmp_path):
    train(made(tmp_path, Api(), first_step=10, steps=3, every=20), 20, start=15)
    assert markers(tmp_path) == [(30, 32, "complete")]


def test_under_sink_whole_calls_are_profiled(tmp_path):
    api = Api()
    train(made(tmp_path, api, first_step=10, steps=6), 40, grown=4)
    assert markers(tmp_path) == [(9, 16, "complete")]  # calls train steps 9..12 and 13..16
    assert [(one.steps, one.seen) for one in api.recordings] == [(2, 2)]


def test_a_sink_of_a_whole_epoch_is_not_profiled(tmp_path, caplog):
    api = Api()
    with caplog.at_level(logging.WARNING, "stepscope"):
        train(made(tmp_path, api, first_step=10, steps=6, every=300), 1000, grown=200)
    assert api.recordings == []
    assert [record.getMessage() for record in caplog.records] == [
        "Stepscope: a call trains 200 steps at once: give Model.train a sink_size up to 50"
    ]


def test_training_that_ends_inside_a_window_still_closes_it(tmp_path):
    train(made(tmp_path, Api(), first_step=10, steps=5), 11)
    assert markers(tmp_path) == [(10, 11, "complete")]


@pytest.mark.parametrize(
    ("ranks", "profiled"),
    [(None, [0, 4]), ("all", [0, 1, 2, 3, 4, 5, 6, 7]), ([3, 5], [3, 5])],
    ids=["first of each stage", "all", "chosen"],
)
def test_ranks_that_are_profiled(tmp_path, ranks, profiled):
    found = []
    for rank in range(8):
        api = Api(rank=rank, world_size=8, pp=2)
        train(made(tmp_path / str(rank), api, first_step=3, steps=1, ranks=ranks), 5)
        found += [rank] if api.recordings else []
    assert found == profiled


def test_every_rank_records_its_steps(tmp_path):
    train(made(tmp_path, Api(rank=3, world_size=8), first_step=3, steps=1), 5)
    assert len(read_records_file(str(tmp_path / "stepscope_steps_rank_3.jsonl"))) == 5


def test_the_loss_is_fetched_seldom_and_around_windows(tmp_path):
    api = Api()
    train(made(tmp_path, api, first_step=15, steps=3, loss_every=10), 30)
    assert api.fetched == [5.0, 7.0, 8.5, 10.0, 15.0]  # steps 10, 14 before the window, 17 its last, 20, 30


def test_named_outputs_are_recorded(tmp_path):
    callback = made(tmp_path, Api(), first_step=90, outputs=("loss", "overflow", "loss_scale"), loss_every=1)
    train(callback, 2, outputs=lambda step: (1.5, 0.0, 1024.0, "more"))
    first = read_records_file(str(tmp_path / "stepscope_steps_rank_0.jsonl"))[0]
    assert (first["loss"], first["overflow"], first["loss_scale"]) == (1.5, False, 1024.0)


def test_a_loss_that_is_not_finite_is_left_out(tmp_path):
    train(made(tmp_path, Api(), first_step=90, loss_every=1), 1, outputs=lambda step: float("nan"))
    assert "loss" not in read_records_file(str(tmp_path / "stepscope_steps_rank_0.jsonl"))[0]


def test_step_times_under_sink_are_per_step(tmp_path):
    train(made(tmp_path, Api(), first_step=90), 40, grown=4)
    records = read_records_file(str(tmp_path / "stepscope_steps_rank_0.jsonl"))
    assert [record["step"] for record in records] == list(range(4, 41, 4))


@pytest.mark.parametrize("broken", ["start", "step", "finish"])
def test_three_errors_turn_it_off_with_one_line(tmp_path, caplog, broken):
    api = Api(broken=broken)
    with caplog.at_level(logging.WARNING, "stepscope"):
        train(made(tmp_path, api, first_step=3, steps=1, every=2), 40)
    first, second = (record.getMessage() for record in caplog.records)  # the error once, however often, and the end
    assert first.startswith("Stepscope: ") and first.endswith("; the training goes on")
    assert second.startswith("Stepscope turned itself off after 3 errors, the last: ")


def test_another_profiler_keeps_the_windows_and_not_the_records(tmp_path, caplog):
    api = Api(stranger="callback DynamicProfilerMonitor")
    train(made(tmp_path, api, first_step=3, steps=1), 5)
    assert api.recordings == []
    assert len(read_records_file(str(tmp_path / "stepscope_steps_rank_0.jsonl"))) == 5


def test_on_a_device_raw_data_are_left_to_the_agent(tmp_path):
    api = Api(target="Ascend", analysed=False)
    train(made(tmp_path, api, first_step=3, steps=1, every=2, keep_raw=2), 20)
    assert api.options["analyse"] is False
    assert [state for _, _, state in markers(tmp_path)] == ["raw", "raw"]


def test_an_analysis_without_a_result_is_marked_failed(tmp_path):
    train(made(tmp_path, Api(analysed=False), first_step=3, steps=1), 5)
    assert markers(tmp_path) == [(3, 3, "failed")]


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"first_step": 1}, {"every": 3, "steps": 3}])
def test_impossible_windows_are_refused_at_once(tmp_path, wrong):
    with pytest.raises(ValueError, match="first_step"):
        made(tmp_path, Api(), **wrong)


def test_no_attribute_hides_a_method_of_mindspore(tmp_path):
    names = ("begin", "end", "step_begin", "step_end", "epoch_begin", "epoch_end")
    assert not set(names) & set(vars(made(tmp_path, Api())))


def steps_on_disk(tmp_path):
    return [record["step"] for record in read_records_file(str(tmp_path / "stepscope_steps_rank_0.jsonl"))]


class Monitor:
    """As MindSpore Transformers' monitor, which knows where the training goes on."""

    initial_step = 0


@pytest.mark.parametrize(
    ("more", "monitored", "begins"),
    [
        ({}, 0, 1),
        ({"epoch": 3}, 0, 21),  # Model.train(initial_epoch=2): two epochs of ten steps were before
        ({"epoch": 3}, 25, 26),  # from within the third, told as steps of the whole training
        ({"epoch": 3}, 5, 26),  # or as steps of the epoch
        ({"epoch": 1, "initial_step": 1000}, 0, 1001),
        ({"epoch": 3, "start": 20}, 0, 21),  # MindSpore itself counted them in, after it recovered
    ],
)
def test_a_training_that_goes_on_from_a_checkpoint_counts_on(tmp_path, more, monitored, begins):
    monitor, callback = Monitor(), made(tmp_path, Api(), first_step=begins + 4, steps=2, every=1000)
    monitor.initial_step = monitored
    train(callback, steps=10, list_callback=[monitor, callback], **more)
    assert steps_on_disk(tmp_path) == list(range(begins, begins + 10))
    assert markers(tmp_path) == [(begins + 4, begins + 5, "complete")]


def test_steps_made_before_can_be_told(tmp_path, caplog):
    callback = made(tmp_path, Api(), first_step=11, done=500)
    train(callback, steps=4, epoch=1)
    assert steps_on_disk(tmp_path) == [501, 502, 503, 504]
    assert [record.getMessage() for record in caplog.records] == [
        "Stepscope: no window but those asked for: the training goes on behind step 500; give `every`"
    ]


def test_a_callback_used_for_one_epoch_after_another_counts_on(tmp_path):
    callback = made(tmp_path, Api(), first_step=12, steps=2)
    for _ in range(3):  # Model.train(1, ...) in a loop: the framework begins at 1 each time
        train(callback, steps=5, epoch=1)
    assert steps_on_disk(tmp_path) == list(range(1, 16))
    assert markers(tmp_path) == [(12, 13, "complete")]


def test_of_two_callbacks_the_first_works(tmp_path, caplog):
    api = Api()
    first, second = (made(tmp_path, api, first_step=5, steps=2) for _ in range(2))
    for callback in (first, second):
        train(callback, steps=10, list_callback=[first, [second]])
    assert steps_on_disk(tmp_path) == list(range(1, 11))
    assert len(api.recordings) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "Stepscope: another StepscopeCallback is at work in this training: this one does nothing"
    ]


def test_a_window_is_left_out_while_the_scripts_own_profiler_runs(tmp_path, caplog):
    """Which began after the training did."""
    api = Api()

    def outputs(step):
        api.at_work = "a mindspore.profiler of the training script" if 4 <= step < 8 else None

    train(made(tmp_path, api, first_step=5, steps=2, every=5), steps=12, outputs=outputs)
    assert markers(tmp_path) == [(10, 11, "complete")]
    assert [record.getMessage() for record in caplog.records] == [
        "Stepscope: a window is left out: a mindspore.profiler of the training script is at work"
    ]


def test_an_output_folder_that_cannot_be_made_is_told_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    callback = StepscopeCallback(str(tmp_path / "file" / "profiles"), min_free_bytes=0, api=Api(), run="r")
    train(callback, steps=40)
    assert [record.getMessage() for record in caplog.records][0] == (
        "Stepscope: cannot write to %s: Not a directory; nothing is recorded while that is so" % callback.output
    )


def test_records_of_millions_of_steps_take_little_room(tmp_path):
    path = str(tmp_path / "stepscope_steps_rank_0.jsonl")
    writer = Writer(print)
    file, note = RecordFile(path, writer), "x" * 1000
    count = 5 * FULL_BYTES // 1000
    for step in range(count):
        file.add({"step": step, "note": note}, now=step * 0.01)
        if step % 200 == 0:  # as often as it is written
            assert writer.flush(60)
    file.flush()
    assert writer.flush(60)
    assert len(os.listdir(str(tmp_path))) == 2
    assert sum(os.path.getsize(str(tmp_path / name)) for name in os.listdir(str(tmp_path))) < 2.1 * FULL_BYTES
    steps = [record["step"] for record in read_records_file(path)]
    assert steps == list(range(steps[0], count))  # the newest, none lost between the two files


def test_fast_steps_are_written_every_other_second(tmp_path, monkeypatch):
    writer = Writer(print)
    file = RecordFile(str(tmp_path / "records.jsonl"), writer)
    written = []
    monkeypatch.setattr(file, "_append", lambda lines: written.append(len(lines)))
    for step in range(5000):
        file.add({"step": step}, now=1000.0 + step * 0.001)
        assert writer.flush(60)
    assert written == [1, 2000, 2000]


@pytest.mark.parametrize(("took", "pause"), [(0.001, 2.0), (0.02, 2.0), (0.5, 50.0), (30.0, 600.0)])
def test_a_slow_file_system_is_left_alone(took, pause):
    """Waiting for it may take 1 % of the time."""
    assert pause_after(took, usual=2.0) == pytest.approx(pause)


def test_the_last_steps_before_an_error_in_the_training_are_kept(tmp_path):
    program = """
import os, sys
sys.path[:0] = %r
from test_callback import Api, Context, made
import pathlib
callback, context = made(pathlib.Path(sys.argv[1]), Api()), Context(cur_step_num=0)
callback.on_train_begin(context)
for step in range(1, 8):
    context.params.update(cur_step_num=step, net_outputs=float(step))
    callback.on_train_step_begin(context)
    callback.on_train_step_end(context)
if os.fork() == 0:
    sys.exit()  # a worker of a data loader writes nothing
os.wait()
raise RuntimeError("loss is nan")
"""
    done = subprocess.run([sys.executable, "-c", program % (sys.path,), str(tmp_path)], stderr=subprocess.PIPE)
    assert b"loss is nan" in done.stderr
    lines = (tmp_path / "stepscope_steps_rank_0.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert json.loads((tmp_path / "stepscope_status_rank_0.json").read_text())["ended"] is True
