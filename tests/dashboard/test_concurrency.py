"""Many agents at once: what they name together is made once, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Event
from typing import TypeVar

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from dashboard.ingest import retention, storage
from dashboard.ingest.models import Blob, Upload
from dashboard.runs import rollup
from dashboard.runs.models import Capture, Dump, DumpState, Run, StepRecord
from tests.dashboard.api_client import ApiClient
from tests.factories import make_project, make_token
from tests.live import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
T = TypeVar("T")
MANY = 6
NAME, DATA = "kernel_details.csv", b"abc" * 1000


def at_once(call: Callable[[ApiClient, int], T], token: str) -> list[T]:
    """The answers of `call` made by several clients in the same moment."""
    gate = Barrier(MANY)

    def one(number: int) -> T:
        gate.wait(30)
        try:
            return call(ApiClient(token), number)
        finally:
            connection.close()

    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, range(MANY)))


@pytest.fixture
def token(data_root) -> str:
    return make_token(make_project("many"))


def test_agents_of_all_ranks_make_one_run_and_one_capture(token):
    runs = at_once(lambda api, number: api.post("/projects/many/runs", {"key": "job", "name": f"n{number}"}), token)
    assert sorted(answer.status_code for answer in runs) == [200] * (MANY - 1) + [201]
    run_id = Run.objects.get().pk
    dumps = at_once(lambda api, number: api.announce(run_id, {NAME: DATA}, rank=number, world_size=MANY), token)
    assert [answer.status_code for answer in dumps] == [201] * MANY
    assert Capture.objects.count() == 1 and Dump.objects.count() == MANY


def test_one_rank_announced_and_sent_by_several_is_one_dump_with_one_blob(token):
    run_id = ApiClient(token).run("many")["id"]
    dumps = at_once(lambda api, number: api.announce(run_id, {NAME: DATA}).json()["dump"]["id"], token)
    assert len(set(dumps)) == 1
    begun = at_once(lambda api, number: api.begin(dumps[0], NAME, DATA), token)
    assert len({answer["Location"] for answer in begun}) == 1
    address = begun[0]["Location"]
    sent = at_once(lambda api, number: api.patch(address, 0, DATA).status_code, token)
    assert sent.count(204) >= 1 and set(sent) <= {204, 404, 409}
    assert Blob.objects.count() == 1 and not Upload.objects.exists()
    done = at_once(lambda api, number: api.post(f"/dumps/{dumps[0]}/complete").status_code, token)
    assert done == [202] * MANY


def test_ranks_that_send_the_same_contents_at_once_do_not_lock_each_other_out(token):
    run_id = ApiClient(token).run("many")["id"]
    files = {f"{number}.csv": b"%d" % number * 50 for number in range(8)}

    def send(api: ApiClient, number: int) -> list[int]:
        own = {**files, "own.csv": b"of rank %d" % number}
        dump = api.announce(run_id, own, rank=number, world_size=MANY).json()["dump"]["id"]
        order = list(own.values())[:: 1 if number % 2 else -1]
        if number % 3 == 0:  # and one by tus meanwhile
            begun = api.begin(dump, "0.csv", files["0.csv"])
            if begun.status_code == 201:
                api.patch(begun["Location"], 0, files["0.csv"])
        return [api.contents(dump, order).status_code, api.post(f"/dumps/{dump}/complete").status_code]

    assert at_once(send, token) == [[200, 202]] * MANY
    assert Blob.objects.count() == len(files) + MANY and not Upload.objects.exists()


def test_step_records_of_several_senders_do_not_lock_each_other_out(token):
    run_id = ApiClient(token).run("many")["id"]
    steps = [{"step": number, "loss": 1.0} for number in range(500)]
    answers = at_once(
        lambda api, number: api.post(f"/runs/{run_id}/steps", {"steps": steps[:: 1 if number % 2 else -1]}), token
    )
    assert [answer.status_code for answer in answers] == [200] * MANY
    assert StepRecord.objects.count() == 500


FAILS_AT_COMMIT = """
CREATE FUNCTION pg_temp.fail() RETURNS trigger AS $$ BEGIN RAISE 'the server ends here'; END $$ LANGUAGE plpgsql;
CREATE CONSTRAINT TRIGGER fails_at_commit AFTER DELETE ON ingest_blob DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION pg_temp.fail();
"""


def old_dump(token: str, state: str) -> Dump:
    """A dump of one file, here since 31 days."""
    api = ApiClient(token)
    dump_id = api.announce(api.run("many")["id"], {NAME: DATA}).json()["dump"]["id"]
    api.send(dump_id, {NAME: DATA})
    Dump.objects.filter(pk=dump_id).update(state=state)
    Blob.objects.update(created=timezone.now() - timedelta(days=31))
    return Dump.objects.get(pk=dump_id)


def test_a_sweep_that_ends_before_its_commit_leaves_bytes_to_every_row(token):
    dump = old_dump(token, DumpState.DIGESTED)
    with connection.cursor() as cursor:
        cursor.execute(FAILS_AT_COMMIT)
        try:
            with pytest.raises(DatabaseError, match="the server ends here"):
                retention.remove_old_uploads(dump.capture.run.project, 30)
        finally:
            cursor.execute("DROP TRIGGER fails_at_commit ON ingest_blob")
    assert Blob.objects.count() == len(storage.stored_blobs()) == 1


def waits_for_a_lock() -> bool:
    # Not pg_stat_activity: it stays as a transaction first saw it.
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted")
        return cursor.fetchone() is not None


def bring_again(token: str, dump: Dump) -> tuple[list[str], int]:
    """What is missing of a second rank with the same file, and the status of its completion."""
    api = ApiClient(token)
    try:
        found = api.announce(dump.capture.run_id, {NAME: DATA}, rank=1).json()
        return found["missing"], api.post(f"/dumps/{found['dump']['id']}/complete", {}).status_code
    finally:
        connection.close()


def test_a_dump_is_not_complete_with_what_a_sweep_is_taking(token):
    dump = old_dump(token, DumpState.DIGESTED)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert retention.remove_old_uploads(dump.capture.run.project, 30) == 1
            brought = pool.submit(bring_again, token, dump)
            wait_for(waits_for_a_lock, "the dump to wait for the sweep", 20)
        assert brought.result(30) == ([], 409)
    assert Dump.objects.get(rank=1).state == DumpState.RECEIVING


def test_what_another_dump_came_to_need_after_a_sweep_looked_stays(token):
    dump = old_dump(token, DumpState.DIGESTED)
    going = retention.old_uploads(dump.capture.run.project, 30)
    seen = list(going)
    assert bring_again(token, dump) == ([], 202)
    assert retention.remove_blobs(going, seen) == 0
    assert Blob.objects.count() == len(storage.stored_blobs()) == 1


def test_other_files_may_be_announced_while_an_upload_is_finished(token, monkeypatch):
    """The announcement holds the dump and ends its uploads, the upload becomes a blob and counts for the dump."""
    api = ApiClient(token)
    run_id = api.run("many")["id"]
    dump_id = api.announce(run_id, {NAME: DATA}).json()["dump"]["id"]
    address = api.begin(dump_id, NAME, DATA)["Location"]
    locked = Event()

    def kept(path: Path, sha256: str) -> None:
        locked.set()  # the upload's row is held
        wait_for(waits_for_a_lock, "the announcement to wait")
        keep(path, sha256)

    keep = storage.keep
    monkeypatch.setattr(storage, "keep", kept)

    def announce() -> int:
        locked.wait(30)
        try:
            return int(ApiClient(token).announce(run_id, {"other.csv": b"other"}).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(announce)
        assert api.patch(address, 0, DATA).status_code == 204
        assert other.result(60) == 200
    assert Blob.objects.count() == 1 and not Upload.objects.exists()
    assert [file["name"] for file in Dump.objects.get().files] == ["other.csv"]


def test_other_files_may_be_announced_while_contents_are_stored(token, monkeypatch):
    api = ApiClient(token)
    run_id = api.run("many")["id"]
    dump_id = api.announce(run_id, {NAME: DATA}).json()["dump"]["id"]
    api.begin(dump_id, NAME, DATA)
    locked = Event()

    def kept(sources: dict[str, Path]) -> None:
        locked.set()
        wait_for(waits_for_a_lock, "the announcement to wait")
        keep_all(sources)

    keep_all = storage.keep_all
    monkeypatch.setattr(storage, "keep_all", kept)

    def announce() -> int:
        locked.wait(30)
        try:
            return int(ApiClient(token).announce(run_id, {"other.csv": b"other"}).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(announce)
        assert api.contents(dump_id, [DATA]).status_code == 200
        assert other.result(60) == 200


def test_a_roll_up_waits_for_no_dump_and_comes_again(token):
    """Whoever completes a rank that is sent anew holds it and waits for the capture, which the roll-up holds."""
    dump = old_dump(token, DumpState.DIGESTED)
    moment = timezone.now()
    entry = {"rank": 0, "steps": [{"step": "1", "step_time_us": 10.0, "free_us": 4.0, "computing_us": 6.0}]}
    Dump.objects.update(entry=entry, digested_at=moment)
    Capture.objects.update(rollup_due=True)

    def roll_up() -> bool:
        try:
            rollup.rollup(dump.capture_id)
            return Capture.objects.get().rollup_due
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Dump.objects.select_for_update().get(pk=dump.pk)
            assert pool.submit(roll_up).result(60) is True
        assert Capture.objects.get().step_time_ns == 10_000 and "bottleneck" not in Dump.objects.get().entry
        assert pool.submit(roll_up).result(60) is False
    assert "bottleneck" in Dump.objects.get().entry
