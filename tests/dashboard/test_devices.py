"""A dump whose files hold the rows of several devices: every device is a rank of the capture, sent once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboard.ingest import storage, tasks
from dashboard.ingest.models import Blob
from dashboard.runs import rollup
from dashboard.runs.models import Capture, Dump, DumpState, RankStep
from tests.analysis.device_dumps import timeline_of, write_database
from tests.analysis.small_dumps import write_dump
from tests.dashboard.api_client import ApiClient
from tests.dumps import dump_files
from tests.factories import make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def run_id(project) -> int:
    return make_run(project).pk


def contents_of(folder: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in dump_files(folder).items()}


def send(api: ApiClient, run_id: int, contents: dict[str, bytes], **body: Any) -> Dump:
    answer = api.announce(run_id, contents, **body).json()
    api.send(answer["dump"]["id"], {file["name"]: contents[file["name"]] for file in answer["missing"]})
    assert api.post(f"/dumps/{answer['dump']['id']}/complete").status_code == 202
    return Dump.objects.get(pk=answer["dump"]["id"])


def digest_all() -> dict[int, Dump]:
    """Digest until nothing waits, as workers do; the dumps by rank."""
    while waiting := Dump.objects.filter(state=DumpState.UPLOADED).order_by("pk").first():
        tasks.digest_dump(waiting.pk)
    return {dump.rank: dump for dump in Dump.objects.all()}


def test_each_device_of_a_database_becomes_a_rank_without_being_sent_again(api, run_id, tmp_path):
    sent = send(api, run_id, contents_of(write_database(tmp_path)), rank=8)
    stored = Blob.objects.count()
    found = digest_all()
    assert {rank: (dump.state, dump.device_id, dump.origin) for rank, dump in found.items()} == {
        8: (DumpState.DIGESTED, 3, None),
        9: (DumpState.DIGESTED, 4, sent),
    }
    assert {rank: dump.entry["kernels"]["compute_us"] for rank, dump in found.items()} == {8: 0.08, 9: 0.06}
    assert not [text for dump in found.values() for text in dump.source["warnings"] if "device" in text]
    assert Blob.objects.count() == stored
    rollup.rollup(sent.capture_id)
    capture = Capture.objects.get()
    assert (capture.state, capture.rank_count) == ("ready", 2)


def test_each_folder_of_a_device_becomes_a_rank(api, run_id, tmp_path):
    root = write_dump(tmp_path, {**timeline_of(0, [10, 20], 500), **timeline_of(1, [40], 700)})
    send(api, run_id, contents_of(root), rank=0)
    found = digest_all()
    assert {rank: dump.entry["kernels"]["compute_us"] for rank, dump in found.items()} == {0: 30.0, 1: 40.0}
    assert {rank: dump.device_id for rank, dump in found.items()} == {0: 0, 1: 1}


def test_digesting_again_makes_no_rank_twice(api, run_id, tmp_path):
    sent = send(api, run_id, contents_of(write_database(tmp_path)), rank=8)
    before = {rank: dump.pk for rank, dump in digest_all().items()}
    Dump.objects.filter(pk=sent.pk).update(state=DumpState.UPLOADED)
    after = digest_all()
    assert {rank: dump.pk for rank, dump in after.items()} == before
    assert {path.name for path in storage.stored_frames()} == {dump.frames for dump in after.values()}


def test_announcing_it_again_changes_nothing(api, run_id, tmp_path):
    contents = contents_of(write_database(tmp_path))
    send(api, run_id, contents, rank=8)
    digest_all()
    for rank in (8, 9):
        answer = api.announce(run_id, contents, rank=rank)
        assert (answer.status_code, answer.json()["dump"]["state"], answer.json()["missing"]) == (200, "digested", [])


def test_a_worker_that_dies_before_the_end_leaves_no_rank_behind(api, run_id, tmp_path, monkeypatch):
    send(api, run_id, contents_of(write_database(tmp_path)), rank=8)

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("dashboard.ingest.digest._mark_due", die)
        digest_all()
    assert Dump.objects.count() == 1 and not storage.stored_frames()
    Dump.objects.update(state=DumpState.UPLOADED)
    assert sorted(digest_all()) == [8, 9]


def test_a_rank_that_sends_its_own_dump_takes_the_place_of_the_found_one(api, run_id, tmp_path):
    first = send(api, run_id, contents_of(write_database(tmp_path / "a")), rank=8)
    found = digest_all()[9]
    own = write_database(tmp_path / "b", TASK=[(100, 200, 4, 1, 11, 2, 5, 9)], COMMUNICATION_OP=[])
    send(api, run_id, contents_of(own), rank=9)
    after = digest_all()
    assert (after[9].pk, after[9].origin) == (found.pk, None)
    assert after[9].entry["kernels"]["compute_us"] == 0.1
    Dump.objects.filter(pk=first.pk).update(state=DumpState.UPLOADED)  # and it stays, whatever is digested again
    assert digest_all()[9].entry["kernels"]["compute_us"] == 0.1


def test_replacing_the_dump_takes_its_found_ranks_along(api, run_id, tmp_path):
    send(api, run_id, contents_of(write_database(tmp_path / "a")), rank=8)
    digest_all()
    one = write_database(tmp_path / "b", TASK=[(100, 200, 3, 1, 11, 2, 5, 9)], COMMUNICATION_OP=[])
    send(api, run_id, contents_of(one), rank=8, replace=True)
    after = digest_all()
    assert sorted(after) == [8]
    assert RankStep.objects.exclude(dump=after[8]).count() == 0


def test_tables_of_ranks_that_go_are_removed(api, run_id, tmp_path, django_capture_on_commit_callbacks):
    send(api, run_id, contents_of(write_database(tmp_path / "a")), rank=8)
    with django_capture_on_commit_callbacks(execute=True):
        digest_all()
    kept = Dump.objects.get(rank=8).frames
    with django_capture_on_commit_callbacks(execute=True):
        api.announce(run_id, {"kernel_details.csv": b"x"}, rank=8, replace=True)
    assert [path.name for path in storage.stored_frames()] == [kept]


def test_the_files_stay_until_every_rank_in_them_is_digested(api, project, run_id, tmp_path):
    from dashboard.ingest import retention

    sent = send(api, run_id, contents_of(write_database(tmp_path)), rank=8)
    tasks.digest_dump(sent.pk)
    Blob.objects.update(created="2020-01-01T00:00:00Z")
    assert retention.remove_old_uploads(project, 30) == 0
    assert digest_all()[9].state == DumpState.DIGESTED
    assert retention.remove_old_uploads(project, 30) == len(sent.files)


def test_deleting_the_dump_deletes_what_was_found_in_it(api, run_id, tmp_path):
    sent = send(api, run_id, contents_of(write_database(tmp_path)), rank=8)
    digest_all()
    sent.delete()
    assert not Dump.objects.exists()


def test_a_rank_beyond_the_captures_world_size_is_not_made(api, run_id, tmp_path):
    send(api, run_id, contents_of(write_database(tmp_path, RANK_DEVICE_MAP=[(0, 3), (9, 4)])), rank=0, world_size=2)
    found = digest_all()
    assert sorted(found) == [0]
    assert "holds devices [3, 4]; only device 3 is reported, not [4]" in found[0].source["warnings"]


def test_a_capture_past_its_keep_takes_every_rank_of_it_along(api, project, run_id, tmp_path):
    from dashboard.ingest import retention

    send(api, run_id, contents_of(write_database(tmp_path / "a")), rank=8)
    digest_all()
    Capture.objects.update(captured_at="2020-01-01T00:00:00Z")
    newest = write_database(tmp_path / "b", TASK=[(100, 200, 3, 1, 11, 2, 5, 9)], COMMUNICATION_OP=[])
    kept = send(api, run_id, contents_of(newest), rank=8, capture="step-2")
    digest_all()
    Capture.objects.update(state="ready")
    assert retention.remove_old_captures(project, 30) == 1
    (left,) = Dump.objects.all()
    assert left.pk == kept.pk and [path.name for path in storage.stored_frames()] == [left.frames]
