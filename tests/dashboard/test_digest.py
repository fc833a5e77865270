"""From bytes to rows: what a worker stores of a good dump, and what it says of a bad one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.ingest import child, digest, queue, storage, sweeps, tasks
from dashboard.runs.models import Capture, Dump, DumpState, RankStep
from tests.dashboard.api_client import ApiClient
from tests.dumps import dump_files, write_dump
from tests.factories import make_run

KERNELS = "ASCEND_PROFILER_OUTPUT/kernel_details.csv"


@pytest.fixture
def run_id(project) -> int:
    return make_run(project).pk


def upload(api: ApiClient, run_id: int, contents: dict[str, bytes], **body: Any) -> Dump:
    """A dump that is here and waits, all by the API."""
    answer = api.announce(run_id, contents, **body).json()
    api.send(answer["dump"]["id"], {file["name"]: contents[file["name"]] for file in answer["missing"]})
    assert api.post(f"/dumps/{answer['dump']['id']}/complete").status_code == 202
    return Dump.objects.get(pk=answer["dump"]["id"])


def contents_of(folder: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in dump_files(folder).items()}


def digested(dump: Dump) -> Dump:
    tasks.digest_dump(dump.pk)
    dump.refresh_from_db()
    return dump


def test_a_digest_stores_steps_numbers_and_tables(api, run_id, tmp_path):
    truth = write_dump(tmp_path, rank=0, steps=3)
    dump = digested(upload(api, run_id, contents_of(truth.folder)))
    assert (dump.state, dump.error, dump.progress, dump.attempts) == (DumpState.DIGESTED, "", 1, 1)
    rows = list(RankStep.objects.filter(dump=dump))
    assert [row.computing_ns for row in rows] == [step.computing_ns for step in truth.steps]
    assert [row.free_ns for row in rows] == [step.free_ns for step in truth.steps]
    assert storage.table_path(dump.frames, "kernels").is_file()
    assert dump.entry["rank"] == 0 and dump.cast_ratio is not None
    assert Capture.objects.get().rollup_due


def test_secrets_in_the_environment_that_a_dump_holds_are_not_stored(api, run_id, tmp_path):
    contents = contents_of(write_dump(tmp_path, rank=0).folder)
    told = {"environment": {"HUB_TOKEN": "abc", "RANK_SIZE": "1"}}
    dump = digested(upload(api, run_id, {**contents, "stepscope_run.json": json.dumps(told).encode()}))
    assert (dump.state, dump.error) == (DumpState.DIGESTED, "")
    assert dump.source["environment"] == {"HUB_TOKEN": "***", "RANK_SIZE": "1"}


def test_a_second_worker_finds_nothing_to_do(api, run_id):
    dump = upload(api, run_id, {KERNELS: b"x"})
    assert Dump.objects.claim(dump.pk)
    assert not Dump.objects.claim(dump.pk)


def test_digesting_again_replaces_rows_and_tables(api, run_id, tmp_path):
    contents = contents_of(write_dump(tmp_path, rank=0, steps=2).folder)
    first = digested(upload(api, run_id, contents)).frames
    Dump.objects.update(state=DumpState.UPLOADED)
    dump = digested(Dump.objects.get())
    assert dump.frames != first and RankStep.objects.count() == 2
    assert [path.name for path in storage.stored_frames()] == [dump.frames]


def test_a_dump_replaced_while_it_is_digested_keeps_nothing_of_the_old(api, run_id, tmp_path, monkeypatch):
    dump = upload(api, run_id, contents_of(write_dump(tmp_path, rank=0).folder))
    real = digest.run_analysis

    def slow(*arguments: Any) -> None:
        real(*arguments)
        api.announce(run_id, {KERNELS: b"new"}, replace=True)

    monkeypatch.setattr(digest, "run_analysis", slow)
    assert digested(dump).state == DumpState.RECEIVING
    assert not RankStep.objects.exists() and not storage.stored_frames()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\x00",
        b"no,columns,known\n1,2,3\n",
        b'"Name,Type\nnever closed',
        b",".join([b"c"] * 10_000) + b"\n",
    ],
    ids=["empty", "not utf-8", "unknown columns", "open quotes", "10000 columns"],
)
def test_a_bad_file_fails_its_dump_with_one_line_that_names_it(api, run_id, data):
    dump = digested(upload(api, run_id, {KERNELS: data}))
    assert dump.state == DumpState.FAILED
    assert "kernel_details.csv" in dump.error and "\n" not in dump.error and "Traceback" not in dump.error


def test_files_of_another_rank_are_refused(api, run_id, tmp_path):
    contents = contents_of(write_dump(tmp_path, rank=0, dp=4).folder)
    dump = digested(upload(api, run_id, contents, rank=3))
    assert dump.state == DumpState.FAILED
    assert "rank 0" in dump.error and "rank 3" in dump.error


def test_a_hungry_dump_is_stopped_with_the_limit_in_the_reason(api, run_id, settings, tmp_path):
    settings.DIGEST_MEMORY_BYTES = 300 << 20  # Polars starts within it, and finds no room for its threads
    dump = digested(upload(api, run_id, contents_of(write_dump(tmp_path, rank=0).folder)))
    assert dump.state == DumpState.FAILED
    assert "needed more than 300.0 MB of memory" in dump.error


def run_child(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, beat: Any = lambda stage: None) -> None:
    """Run some Python in place of the analysis, under its limits."""
    package = folder / "analysis"
    package.mkdir()
    (package / "__main__.py").write_text(code)
    child.run_analysis([], folder, 0, beat)


def test_a_child_that_takes_all_memory_dies_alone(tmp_path, settings, monkeypatch):
    settings.BASE_DIR, settings.DIGEST_MEMORY_BYTES = tmp_path, 256 << 20
    with pytest.raises(child.DigestFailed, match="needed more than 256.0 MB"):
        run_child("x = bytearray(1 << 30)", tmp_path, monkeypatch)


def test_a_child_that_never_ends_is_stopped(tmp_path, settings, monkeypatch):
    settings.BASE_DIR, settings.DIGEST_SECONDS = tmp_path, 1
    beats: list[str] = []
    with pytest.raises(child.DigestFailed, match="longer than 1 s"):
        run_child("import time; time.sleep(600)", tmp_path, monkeypatch, beats.append)


class Enough(Exception):
    pass


def test_what_a_child_tells_that_it_is_at_is_passed_on_while_it_works(tmp_path, settings, monkeypatch):
    settings.BASE_DIR = tmp_path
    code = "import sys, time; open(sys.argv[sys.argv.index('--stage') + 1], 'w').write('layers'); time.sleep(600)"

    def beat(stage: str) -> None:
        if stage == "layers":
            raise Enough

    with pytest.raises(Enough):
        run_child(code, tmp_path, monkeypatch, beat)


def test_the_stage_of_a_digest_is_shown_until_it_ends(api, run_id, tmp_path):
    dump = upload(api, run_id, contents_of(write_dump(tmp_path, rank=0).folder))
    Dump.objects.claim(dump.pk)
    dump.refresh_from_db()
    beat = digest._beat(dump)
    beat("layers")
    beat("")  # the child has told nothing new that we know
    dump.refresh_from_db()
    assert (dump.stage_name, dump.progress) == ("Finding layers", digest.STAGES["layers"])
    Dump.objects.update(state=DumpState.UPLOADED)
    assert digested(dump).stage_name == ""


def test_a_child_that_is_killed_is_said_to_have_run_out_of_memory(tmp_path, settings, monkeypatch):
    settings.BASE_DIR = tmp_path
    with pytest.raises(child.DigestFailed, match="of memory"):
        run_child("import os; os.kill(os.getpid(), 9)", tmp_path, monkeypatch)


def test_a_child_gets_none_of_the_servers_secrets(tmp_path, settings, monkeypatch):
    settings.BASE_DIR = tmp_path
    monkeypatch.setenv("SECRET_KEY", "very secret")
    code = "import os, sys; sys.exit(any(name in os.environ for name in ('SECRET_KEY', 'DATABASE_URL', 'REDIS_URL')))"
    run_child(code, tmp_path, monkeypatch)


def test_a_worker_that_is_killed_takes_its_child_along(tmp_path):
    code = """
import subprocess, sys
from dashboard.ingest.child import _limits
import os
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True,
    preexec_fn=_limits(1 << 33, 600, os.getpid()))
print(child.pid, flush=True)
child.wait()
"""
    boot = "import django; django.setup()\n" + code
    worker = subprocess.Popen([sys.executable, "-c", boot], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    from tests.live import wait_for

    wait_for(lambda: not _runs(child), "the child's end", 20)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_dead_workers_dump_waits_again_and_fails_after_the_attempts_allowed(api, run_id, settings):
    settings.DIGEST_ATTEMPTS = 3
    dump = upload(api, run_id, {KERNELS: b"x"})
    long_ago = timezone.now() - timedelta(minutes=5)
    for attempt in (1, 2, 3):
        assert Dump.objects.claim(dump.pk)
        assert sweeps.release_dead(timedelta(seconds=30)) == 0  # it may still live
        Dump.objects.update(heartbeat=long_ago)
        sweeps.release_dead(timedelta(seconds=30))
        dump.refresh_from_db()
        assert dump.state == (DumpState.UPLOADED if attempt < 3 else DumpState.FAILED)
    assert "3 attempts" in dump.error and Capture.objects.get().rollup_due


def test_a_lost_message_is_sent_again(api, run_id):
    upload(api, run_id, {KERNELS: b"x"})
    _empty_queue()
    assert sweeps.send_lost(timedelta(seconds=30)) == 0  # too young: its message may be on its way
    assert sweeps.send_lost(timedelta(0)) == 1
    assert sweeps.send_lost(timedelta(0)) == 0  # its message waits in the queue
    _empty_queue()


def test_a_clock_that_is_set_back_leaves_no_dump_waiting_for_it(api, run_id):
    dump = upload(api, run_id, {KERNELS: b"x"})
    _empty_queue()
    Dump.objects.update(uploaded_at=timezone.now() + timedelta(hours=1))
    assert sweeps.send_lost(timedelta(seconds=15)) == 1
    assert Dump.objects.claim(dump.pk)
    assert sweeps.release_dead(timedelta(seconds=30)) == 0
    Dump.objects.update(heartbeat=timezone.now() + timedelta(hours=1))
    assert sweeps.release_dead(timedelta(seconds=30)) == 1
    _empty_queue()


def test_only_as_many_messages_are_sent_again_as_are_missing(api, run_id):
    for rank in range(3):
        upload(api, run_id, {KERNELS: b"x"}, rank=rank)
    _empty_queue()
    queue.send_now(sweeps.DIGEST, Dump.objects.earliest("uploaded_at").pk)
    assert sweeps.send_lost(timedelta(0)) == 2
    assert queue.waiting() == 3
    _empty_queue()


def _empty_queue() -> None:
    import redis

    redis.Redis.from_url(os.environ["REDIS_URL"]).delete("digest")
