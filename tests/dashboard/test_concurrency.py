"""Many agents at once: what they name together is made once, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import pytest
from django.db import connection

from dashboard.ingest.models import Blob, Upload
from dashboard.runs.models import Capture, Dump, Run, StepRecord
from tests.dashboard.api_client import ApiClient
from tests.factories import make_project, make_token

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
