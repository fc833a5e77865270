"""File work in a thread of its own: a file system that hangs holds up no training, nor the end of one.

A FIFO that nobody reads stands for it: opening it to write never returns.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest
from stepscope_agent import records
from stepscope_agent.logs import read_records_file
from stepscope_agent.mindspore import PROBE, StepscopeCallback
from stepscope_agent.records import RecordFile
from stepscope_agent.writer import Writer

from test_callback import Api, Context, made, markers, train

RECORDS = "stepscope_steps_rank_%d.jsonl"


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """A folder whose file of records hangs; afterwards it gets a reader, so that no thread stays."""
    path = str(tmp_path / (RECORDS % 0))
    os.mkfifo(path)
    monkeypatch.setattr("stepscope_agent.mindspore.PATIENCE_S", 0.1)
    yield tmp_path
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


@pytest.fixture
def writer():
    told = []
    made = Writer(told.append)
    made.told = told
    return made


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "stepscope"]


def unanswered(folder):
    return "Stepscope: %s does not answer: the latest 100000 steps wait in memory for it" % folder


def test_jobs_are_done_in_their_order_and_elsewhere(writer):
    done = []
    for number in range(100):
        writer.put(str(number), lambda number=number: done.append((number, threading.current_thread().name)))
    assert writer.flush(60)
    assert done == [(number, "stepscope-writer") for number in range(100)]


def test_of_jobs_of_one_name_that_wait_the_latest_is_done(writer):
    gate, done = threading.Event(), []
    writer.put("first", gate.wait)
    for number in range(1000):
        writer.put("status", lambda number=number: done.append(number))
        writer.put("other", lambda number=number: done.append(-number))
    assert len(writer._jobs) <= 3
    gate.set()
    assert writer.flush(60)
    assert done[-2:] == [999, -999]


def test_an_error_is_told_and_the_next_job_done(writer):
    done = []
    writer.put("broken", lambda: 1 / 0)
    writer.put("next", lambda: done.append(1))
    assert writer.flush(60)
    assert (writer.told, done) == (["ZeroDivisionError: division by zero; the training goes on"], [1])


def test_nobody_waits_twice_for_a_job_that_hangs(writer):
    gate = threading.Event()
    writer.put("hangs", gate.wait)
    assert not writer.flush(0.01)
    assert not writer.flush(10**6)
    assert writer.hangs(0.0) and not writer.hangs(10**6)
    gate.set()
    writer.put("next", lambda: None)
    while not writer.flush(60):
        pass
    assert not writer.hangs(0.0)


def test_a_process_forked_off_begins_anew(writer):
    """Also where the other thread held the lock, which nobody in the new process would ever release."""
    gate, inside = threading.Event(), threading.Event()
    writer.put("hangs", lambda: (inside.set(), gate.wait()))
    writer.put("the parent's", lambda: None)
    assert inside.wait(60)
    with writer._changed:
        child = os.fork()
        if not child:
            done = []
            thread = threading.Thread(target=lambda: writer.put("own", lambda: done.append(1)) or writer.flush(60))
            thread.start()
            thread.join(60)
            os._exit(0 if done == [1] else 1)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    assert writer.flush(60)


def test_a_callback_can_be_copied_and_sent(tmp_path):
    callback = StepscopeCallback(str(tmp_path))
    for other in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert other._writer is not callback._writer
        assert other._writer._say.__self__ is other


def test_records_stay_in_order_and_whole_while_two_threads_are_at_them(tmp_path, writer):
    file = RecordFile(str(tmp_path / "records.jsonl"), writer)
    for step in range(50000):
        file.add({"step": step}, now=step * 0.1)  # written every twentieth
    file.flush()
    assert writer.flush(60)
    assert [row["step"] for row in read_records_file(str(tmp_path / "records.jsonl"))] == list(range(50000))
    assert file.dropped == 0


def test_of_too_many_records_that_wait_the_oldest_go_and_are_counted(tmp_path, writer, monkeypatch):
    monkeypatch.setattr(records, "MOST_WAITING", 100)
    file, gate = RecordFile(str(tmp_path / "records.jsonl"), writer), threading.Event()
    writer.put("hangs", gate.wait)
    for step in range(1000):
        file.add({"step": step}, now=step * 0.1)
    assert file.dropped == 900
    gate.set()
    assert writer.flush(60)
    assert [row["step"] for row in read_records_file(str(tmp_path / "records.jsonl"))] == list(range(900, 1000))


def test_a_training_goes_through_while_its_files_hang(hanging, caplog):
    with caplog.at_level(logging.WARNING, "stepscope"):
        train(made(hanging, Api(), first_step=10**6), 1000)
    assert lines(caplog) == [unanswered(hanging)]


def test_a_training_goes_through_a_fork_while_its_files_hang(hanging, caplog):
    left = []

    def outputs(step):
        if step % 500 == 0:
            child = os.fork()
            if not child:
                callback._tell(0.0)
                done = callback._writer.flush(60)
                callback._left()  # as atexit would
                os._exit(0 if done else 1)
            left.append(os.waitpid(child, 0)[1])

    callback = made(hanging, Api(), first_step=10**6)
    with caplog.at_level(logging.WARNING, "stepscope"):
        train(callback, 1000, outputs=outputs)
    assert left == [0, 0]
    assert lines(caplog) == [unanswered(hanging)]


def test_no_window_begins_while_files_hang(hanging, caplog):
    api = Api()
    with caplog.at_level(logging.WARNING, "stepscope"):
        train(made(hanging, api, first_step=5, steps=2, every=10), 100)
    assert api.recordings == []
    assert lines(caplog) == [unanswered(hanging)]


def test_files_that_hang_are_told_while_the_training_goes_on(hanging, caplog, monkeypatch):
    monkeypatch.setattr("stepscope_agent.mindspore.HANGS_S", 0.0)
    callback, context = made(hanging, Api(), first_step=10**6), Context(cur_step_num=0)
    with caplog.at_level(logging.WARNING, "stepscope"):
        callback.on_train_begin(context)
        while not lines(caplog):
            context.params["cur_step_num"] += 1
            callback.on_train_step_begin(context)
            callback.on_train_step_end(context)
            callback._tell(0.0)
    assert lines(caplog) == [unanswered(hanging)]


def test_what_waited_is_written_when_the_files_answer_again(tmp_path):
    """All of it, in order, and then windows too."""
    path = str(tmp_path / (RECORDS % 0))
    os.mkfifo(path)
    callback, context = made(tmp_path, Api(), first_step=510, steps=2), Context(cur_step_num=0)
    got = []

    def read():
        with open(path) as stream:
            got.extend(json.loads(line)["step"] for line in stream)

    callback.on_train_begin(context)
    for step in range(1, 521):
        context.params.update(cur_step_num=step, net_outputs=1.0)
        callback.on_train_step_begin(context)
        callback.on_train_step_end(context)
        if step == 500:
            assert not callback._writer.flush(0.01)
            reader = threading.Thread(target=read)
            reader.start()
            reader.join(60)
            os.unlink(path)
    callback.on_train_end(context)
    assert got + [row["step"] for row in read_records_file(path)] == list(range(1, 521))
    assert markers(tmp_path) == [(510, 511, "complete")]


def test_no_window_begins_while_what_is_written_before_it_hangs(tmp_path, caplog, monkeypatch):
    """Records and words were answered: the file system began to hang after them."""
    monkeypatch.setattr("stepscope_agent.mindspore.PATIENCE_S", 0.2)
    path = str(tmp_path / (PROBE % 0))
    os.mkfifo(path)
    callback, context = made(tmp_path, Api(), first_step=5, steps=2, every=10), Context(cur_step_num=0)
    with caplog.at_level(logging.WARNING, "stepscope"):
        callback.on_train_begin(context)
        for step in range(1, 21):
            context.params.update(cur_step_num=step, net_outputs=1.0)
            callback.on_train_step_begin(context)
            callback.on_train_step_end(context)
            if step == 10:
                assert markers(tmp_path) == []
                reader = os.open(path, os.O_RDONLY)  # and now it answers
                os.unlink(path)
                while not callback._writer.flush(0.1):
                    time.sleep(0.01)
                os.close(reader)
        callback.on_train_end(context)
    assert markers(tmp_path) == [(15, 16, "complete")]
    assert lines(caplog)[0] == unanswered(tmp_path)
    assert not os.path.lexists(path)


PROGRAM = """
import os, pathlib, sys
sys.path[:0] = %r
from stepscope_agent.torch import Steps
from test_callback import Api

folder, rank, how = sys.argv[1:]
with Steps(folder, run="r", first_step=10**6, api=Api(rank=int(rank), world_size=3)) as steps:
    for step in range(1, 1001):
        steps.step(loss=1.0)
        if step == 500:
            worker = os.fork()
            if not worker:
                sys.exit()
            assert os.waitpid(worker, 0)[1] == 0
    if how == "fails":
        raise RuntimeError("loss is nan")
    print("trained")
"""


def test_of_three_ranks_one_hangs_one_fails_and_all_end(tmp_path):
    hung = tmp_path / "hung"
    hung.mkdir()
    os.mkfifo(str(hung / (RECORDS % 0)))
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM % (sys.path,)]
    given = [(hung, "0", "ends"), (tmp_path / "well", "1", "ends"), (tmp_path / "well", "2", "fails")]
    ranks = [
        subprocess.Popen(program + [str(folder), rank, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for folder, rank, how in given
    ]
    told = [process.communicate(timeout=300) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0, 1]
    assert [out for out, _ in told] == ["trained\n", "trained\n", ""]
    assert told[0][1].splitlines() == [unanswered(hung)]
    assert (told[1][1], told[2][1].splitlines()[-1]) == ("", "RuntimeError: loss is nan")
    for rank in (1, 2):
        rows = read_records_file(str(tmp_path / "well" / (RECORDS % rank)))
        assert [row["step"] for row in rows] == list(range(1, 1001))
        status = json.loads((tmp_path / "well" / ("stepscope_status_rank_%d.json" % rank)).read_text())
        assert (status["ended"], status["step"], status["dropped"]) == (True, 1000, 0)
