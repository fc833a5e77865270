"""Announcing and completing dumps: limits, repeats, other content for the same rank."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard.ingest.models import Blob
from dashboard.runs.models import Capture, Dump, DumpState
from tests.dashboard.api_client import ApiClient, error_of
from tests.factories import entries, make_project, make_run, make_token

CONTENTS = {"ASCEND_PROFILER_OUTPUT/kernel_details.csv": b"a,b\n1,2\n", "profiler_info_0.json": b"{}"}


@pytest.fixture
def run_id(project) -> int:
    return make_run(project).pk


def test_a_dump_is_announced_once_and_asks_for_what_is_missing(api, run_id):
    first, again = api.announce(run_id, CONTENTS), api.announce(run_id, CONTENTS)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["missing"] == again.json()["missing"] == entries(CONTENTS)
    dump = first.json()["dump"]
    assert (dump["state"], dump["capture"]["state"], dump["error"]) == ("receiving", "receiving", None)
    assert again.json()["dump"]["id"] == dump["id"]


def test_a_dump_whose_files_are_all_here_waits_for_a_worker(api, run_id):
    dump = api.announce(run_id, CONTENTS).json()["dump"]["id"]
    response = api.post(f"/dumps/{dump}/complete")
    assert error_of(response) == (409, "incomplete")
    assert response.json()["missing"] == entries(CONTENTS)
    api.send(dump, CONTENTS)
    for _ in range(2):
        response = api.post(f"/dumps/{dump}/complete")
        assert response.status_code == 202
        assert response.json()["dump"]["state"] == "uploaded"


def test_content_is_stored_once_and_never_asked_for_again(api, run_id, data_root):
    api.send(api.announce(run_id, CONTENTS).json()["dump"]["id"], CONTENTS)
    renamed = {"trace_view.csv": CONTENTS["ASCEND_PROFILER_OUTPUT/kernel_details.csv"]}
    assert api.announce(run_id, renamed, rank=1).json()["missing"] == []
    assert Blob.objects.count() == len(list(data_root.glob("blobs/*/*"))) == 2


def test_another_project_must_send_the_content_itself(api, run_id, project):
    api.send(api.announce(run_id, CONTENTS).json()["dump"]["id"], CONTENTS)
    other = make_project()
    stranger = ApiClient(make_token(other))
    assert stranger.announce(make_run(other).pk, CONTENTS).json()["missing"] == entries(CONTENTS)


@pytest.mark.parametrize("state", [DumpState.UPLOADED, DumpState.DIGESTING, DumpState.DIGESTED])
def test_other_files_for_the_same_rank_need_replace(api, run_id, state):
    dump = api.announce(run_id, CONTENTS).json()["dump"]["id"]
    Dump.objects.update(state=state)
    other = {"profiler_info_0.json": b'{"other": 1}'}
    assert error_of(api.announce(run_id, other)) == (409, "conflict")
    replaced = api.announce(run_id, other, replace=True).json()
    assert (replaced["dump"]["id"], replaced["dump"]["state"]) == (dump, "receiving")
    assert replaced["missing"] == entries(other)


@pytest.mark.parametrize("state", [DumpState.RECEIVING, DumpState.FAILED])
def test_other_files_replace_a_dump_that_is_not_whole_or_has_failed(api, run_id, state):
    api.announce(run_id, CONTENTS)
    Dump.objects.update(state=state, error="bad")
    other = {"profiler_info_0.json": b'{"other": 1}'}
    assert api.announce(run_id, other).json()["dump"] | {"capture": None} == {
        "id": Dump.objects.get().pk,
        "state": "receiving",
        "rank": 0,
        "progress": 0,
        "error": None,
        "attempts": 0,
        "capture": None,
    }


def test_a_rank_of_another_job_is_refused(api, run_id):
    api.announce(run_id, CONTENTS, world_size=8)
    assert error_of(api.announce(run_id, CONTENTS, rank=1, world_size=4)) == (409, "conflict")
    assert error_of(api.announce(run_id, CONTENTS, rank=8, world_size=8)) == (400, "bad_request")


@pytest.mark.parametrize(
    "change",
    [{"rank": -1}, {"rank": 1_000_001}, {"rank": True}, {"rank": "0"}, {"capture": "a/b"}, {"files": {}}, {"host": 5}],
)
def test_a_malformed_announcement_is_refused(api, run_id, change):
    assert error_of(api.announce(run_id, CONTENTS, **change)) == (400, "bad_request")
    assert not Capture.objects.exists()


def test_each_limit_is_named_with_its_number(api, run_id, project, settings):
    settings.MAX_FILE_BYTES, settings.MAX_DUMP_BYTES, settings.MAX_DUMP_FILES = 10, 15, 2
    cases = [
        ({"a.csv": b"x" * 11}, "file_too_large", 10),
        ({"a.csv": b"x" * 10, "b.csv": b"y" * 6}, "dump_too_large", 15),
        ({"a.csv": b"", "b.csv": b"", "c.csv": b""}, "too_many_files", 2),
    ]
    for contents, code, limit in cases:
        response = api.announce(run_id, contents)
        assert error_of(response) == (413, code)
        assert response.json()["error"]["limit"] == limit
    assert not Dump.objects.exists()


def test_a_full_project_counts_what_is_stored_and_what_is_promised(api, run_id, project):
    project.max_bytes = 100
    project.save()
    stored = {"a.csv": b"s" * 60}
    api.send(api.announce(run_id, stored).json()["dump"]["id"], stored)
    assert api.announce(run_id, {"a.csv": b"p" * 40}, rank=1).status_code == 201
    response = api.announce(run_id, {"a.csv": b"o"}, rank=2)
    assert error_of(response) == (413, "project_full")
    assert (response.json()["error"]["limit"], response.json()["error"]["used"]) == (100, 101)
    assert api.announce(run_id, stored, rank=3).status_code == 201  # already here: costs nothing
    assert Dump.objects.count() == 3


def test_a_project_with_room_is_not_counted_anew_for_each_rank(api, run_id):
    def queries(rank: int) -> list[str]:
        with CaptureQueriesContext(connection) as seen:
            assert api.announce(run_id, {"a.csv": b"%d" % rank * 40}, rank=rank).status_code == 201
        return [query["sql"] for query in seen if "sum(" in query["sql"].lower()]

    assert queries(0)
    assert not queries(1) and not queries(2)


def test_room_that_became_free_is_found_when_the_project_seems_full(api, run_id, project):
    project.max_bytes = 100
    project.save()
    api.announce(run_id, {"a.csv": b"p" * 60})
    Dump.objects.all().delete()
    assert api.announce(run_id, {"a.csv": b"q" * 60}, rank=1).status_code == 201
    refused = api.announce(run_id, {"a.csv": b"r" * 60}, rank=2)
    assert error_of(refused) == (413, "project_full")
    assert refused.json()["error"]["used"] == 120


def test_a_lower_limit_holds_at_once(api, run_id, project):
    api.announce(run_id, {"a.csv": b"p" * 60})
    project.max_bytes = 100
    project.save()
    assert error_of(api.announce(run_id, {"a.csv": b"q" * 60}, rank=1)) == (413, "project_full")


def test_progress_tells_the_share_of_bytes_that_arrived(api, run_id):
    contents = {"a.csv": b"1" * 30, "b.csv": b"2" * 10}
    dump = api.announce(run_id, contents).json()["dump"]["id"]
    api.send(dump, {"a.csv": contents["a.csv"]})
    assert api.get(f"/dumps/{dump}").json()["dump"]["progress"] == 0.75


def test_a_content_that_is_here_is_not_announced_with_another_size(api, run_id):
    api.send(api.announce(run_id, CONTENTS).json()["dump"]["id"], CONTENTS)
    rows = [{**file, "size": 10**9} for file in entries(CONTENTS)]
    answer = api.post(f"/runs/{run_id}/dumps", {"capture": "other", "rank": 0, "files": rows})
    assert error_of(answer) == (400, "bad_manifest")
    assert answer.json()["error"]["file"] == rows[0]["name"]
    assert Dump.objects.count() == 1
