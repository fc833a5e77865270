"""The step page's timeline: what is drawn, summed, found and taken away is what the kernels are."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import polars as pl
import pytest
from django.http import Http404, QueryDict
from django.test import Client

from analysis.store import write_frames
from dashboard.ingest import downloads, storage, tasks
from dashboard.runs import timeline
from dashboard.runs.models import Dump, DumpState
from dashboard.runs.timeline_index import Index, open_index
from dashboard.runs.views import step as step_views
from tests.dashboard.api_client import ApiClient
from tests.dumps import dump_files, write_dump
from tests.factories import make_capture, make_dump, make_member, make_project, make_run, make_user

pytestmark = pytest.mark.django_db
FRAMES = "1-0123456789ab"
ORIGIN = 1_794_580_560_000_000_000
WORDS = ("type", "kind", "class", "part", "layer", "block", "pass")
ATTENTION = ("layer", 0, "qkv", "forward")
KERNELS = [
    # name, start, duration, stream, then WORDS
    ("Default/0-Layer/MatMul-op0", 0, 100, 3, "MatMul", "compute", "matmul", *ATTENTION),
    ("Default/0-Layer/Cast-op1", 110, 10, 3, "Cast", "compute", "cast", *ATTENTION),
    ("Default/0-Layer/Cast-op2", 120, 10, 3, "Cast", "compute", "cast", *ATTENTION),
    ("Default/1-Layer/MatMul-op3", 200, 100, 3, "MatMul", "compute", "matmul", "layer", 1, "ffn_up", "forward"),
    ("Default/hcom_allReduce__097_1_1", 250, 150, None, "hcom_allReduce_", "communication", "communication",
     "gradient_sync", None, "communication", "none"),
]  # fmt: skip
"""Nothing runs from 100 to 110 and from 130 to 200; from 300 to 400 only the collective does."""


def kernels(rows: list[tuple[Any, ...]] = KERNELS, **more: Any) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["name", "start_ns", "duration_ns", "stream_id", *WORDS], orient="row")
    micro = pl.lit(0, pl.Int64).alias("micro_batch")
    return frame.with_columns(pl.col("start_ns") + ORIGIN, micro, step=pl.lit("7"), **more)


def kept(root: Path, **frames: pl.DataFrame) -> str:
    """The name of a folder with these frames, as a digest leaves it."""
    write_frames(root / "frames" / FRAMES, {"kernels": kernels(), **frames})
    return FRAMES


def index_of(root: Path, **frames: pl.DataFrame) -> Index:
    index = open_index(kept(root, **frames))
    assert index is not None
    return index


def lane(index: Index, kind: str) -> timeline.Lane:
    return next(index.of_kind(kind))


def unpacked(columns: dict[str, list[int]], begin: int = 0) -> list[tuple[int, int, int]]:
    """(start, length, kernels) of each box."""
    starts = [begin + sum(columns["s"][: at + 1]) for at in range(len(columns["s"]))]
    return list(zip(starts, columns["d"], columns.get("n", [1] * len(starts)), strict=True)) if starts else []


@pytest.fixture
def shown(data_root: Path, client: Client) -> Dump:
    """A dump with KERNELS, and its owner signed in."""
    alice = make_user("alice")
    run = make_run(make_project(owner=alice))
    client.force_login(alice)
    return make_dump(make_capture(run), state=DumpState.DIGESTED, frames=kept(data_root))


def address(dump: Dump, path: str = "", **params: Any) -> str:
    query = "&".join(f"{name}={value}" for name, value in params.items())
    return f"/captures/{dump.capture_id}/ranks/{dump.rank}/{path}?{query}"


def test_there_is_a_lane_for_each_stream_each_group_and_each_kind_of_band(data_root):
    index = index_of(data_root)
    assert [(found.kind, found.key, len(found.row)) for found in index.lanes] == [
        ("steps", "", 1), ("layers", "", 2), ("blocks", "", 2), ("compute", "3", 4), ("communication", "097", 1),
        ("free", "", 2), ("computing", "", 3),
    ]  # fmt: skip
    assert (index.origin_ns, index.end, index.kernels) == (ORIGIN, 400, 5)
    assert index.steps == [["7", 0, 400]]


def test_a_group_is_called_as_the_communication_table_calls_it(data_root):
    table = pl.DataFrame({"name": ["hcom_allReduce__097_1_1"], "group": ["5862276345000414097"]})
    assert lane(index_of(data_root, communication=table), "communication").key == "5862276345000414097"


def test_layers_are_bands_from_their_first_kernel_to_their_last(data_root):
    index = index_of(data_root)
    bands = unpacked(timeline.lane_boxes(lane(index, "layers"), 0, 400, 1))
    assert bands == [(0, 130, 1), (200, 100, 1)]
    names = [index.places[code][:3] for code in lane(index, "layers").place]
    assert names == [["layer", 0, "forward"], ["layer", 1, "forward"]]


def test_kernels_narrower_than_a_bucket_are_one_box(data_root):
    index = index_of(data_root)
    found = timeline.lane_boxes(lane(index, "compute"), 0, 400, 50)
    assert unpacked(found) == [(0, 100, 1), (110, 20, 2), (200, 100, 1)]
    assert found["u"] == [100, 20, 100]
    assert [index.classes[code] for code in found["c"]] == ["matmul", "cast", "matmul"]


def test_a_merged_box_has_the_class_that_most_of_its_time_goes_to(data_root):
    rows = [("a", 0, 4, 1), ("b", 4, 3, 1), ("c", 7, 3, 1)]
    classes = {"a": "matmul", "b": "cast", "c": "cast"}
    frame = kernels([(*row, "T", "compute", classes[row[0]], None, None, None, None) for row in rows])
    index = index_of(data_root, kernels=frame)
    found = timeline.lane_boxes(lane(index, "compute"), 0, 100, 100)
    assert (unpacked(found), index.classes[found["c"][0]]) == ([(0, 10, 3)], "cast")
    assert found.get("r", [0]) == [0]  # the longest is the first


def test_neighbouring_windows_share_no_narrow_kernel_and_lose_none(data_root):
    compute = lane(index_of(data_root), "compute")
    windows = [timeline.lane_boxes(compute, begin, begin + 115, 115) for begin in (0, 115, 230)]
    assert [sum(found.get("n", found["s"] and [1] * len(found["s"]))) for found in windows] == [2, 2, 0]


def test_long_kernels_are_in_every_window_they_touch(data_root):
    compute = lane(index_of(data_root), "compute")
    assert unpacked(timeline.lane_boxes(compute, 50, 90, 10), 50) == [(0, 100, 1)]
    assert unpacked(timeline.lane_boxes(compute, 100, 110, 1), 100) == []


def test_a_window_never_has_more_than_two_boxes_a_bucket(data_root):
    rng, rows, at = random.Random(1), [], 0
    for number in range(30_000):
        length = rng.choice((1, 3, 40, 900))
        rows.append((f"k{number}", at, length, 1, "T", "compute", "matmul", None, None, None, None))
        at += length + rng.choice((0, 5))
    compute = lane(index_of(data_root, kernels=kernels(rows)), "compute")
    for span in (at, at // 10, at // 1000):
        assert len(timeline.lane_boxes(compute, at // 3, at // 3 + span, -(-span // 1024))["s"]) <= 2 * 1024
    assert sum(timeline.lane_boxes(compute, 0, at, at // 1024)["u"]) == sum(row[2] for row in rows)


def test_kernels_on_top_of_each_other_do_not_make_a_window_grow(data_root):
    rows = [(f"k{at}", at, 100_000, 1, "T", "compute", "matmul", None, None, None, None) for at in range(10_000)]
    compute = lane(index_of(data_root, kernels=kernels(rows)), "compute")
    assert len(timeline.lane_boxes(compute, 0, 110_000, 108)["s"]) <= 1024


def test_sums_of_a_range_cut_kernels_at_its_edges(data_root):
    index = index_of(data_root)
    found = timeline.sums(index, 100, 260)
    # 110-130 and 200-260 compute; the collective runs from 250, under the matmul; 100-110 and 130-200 are free.
    assert {key: found[key] for key in ("kernels", "length", "computing", "exposed", "free")} == {
        "kernels": 4, "length": 160, "computing": 80, "exposed": 0, "free": 80,
    }  # fmt: skip
    assert [[index.classes[code], *rest] for code, *rest in found["classes"]] == [
        ["matmul", 60, 1], ["cast", 20, 2], ["communication", 10, 1],
    ]  # fmt: skip
    assert found["layers"] == [["layer", 1, 60, 1], ["layer", 0, 20, 2], ["gradient_sync", None, 10, 1]]
    assert found["types"] == [["MatMul", 60, 1], ["Cast", 20, 2], ["hcom_allReduce_", 10, 1]]


def test_the_whole_splits_into_computing_exposed_communication_and_free(data_root):
    found = timeline.sums(index_of(data_root), -1000, 1 << 60)
    assert (found["length"], found["computing"], found["exposed"], found["free"]) == (400, 220, 100, 80)


def test_gaps_come_longest_first_with_the_kernel_that_ends_them_and_their_cause(data_root):
    told = pl.DataFrame({"step": ["7"], "start_ns": [ORIGIN + 130], "duration_ns": [60], "cause": ["sync"]})
    index = index_of(data_root, gaps=told)
    assert timeline.gaps(index, 0, 400) == [[130, 70, "MatMul", 1], [100, 10, "Cast", 0]]
    assert index.causes == [None, "sync"]
    assert timeline.sums(index, 0, 400)["causes"] == [[1, 70, 1], [0, 10, 1]]


def test_search_finds_names_and_types_without_case_in_order_of_time(data_root):
    index = index_of(data_root)
    assert timeline.find(index, FRAMES, "CAST", 0, 400) == {
        "total": 2, "rows": [1, 2], "starts": [110, 120], "lengths": [10, 10],
    }  # fmt: skip
    assert timeline.find(index, FRAMES, "cast", 115, 400)["rows"] == [2]
    assert timeline.find(index, FRAMES, "1-layer/", 0, 400)["rows"] == [3]
    assert timeline.find(index, FRAMES, ".*", 0, 400)["total"] == 0


def test_a_kernel_has_all_its_columns_and_its_neighbours(data_root):
    frame = kernels(flops=pl.lit(1 << 60), **{"aic_mac_ratio": pl.lit(float("nan"))})
    index = index_of(data_root, kernels=frame)
    found = timeline.kernel(index, FRAMES, 1)
    assert found is not None
    assert (found["before"], found["after"], found["start"]) == (0, 2, 110)
    assert found["columns"]["name"] == "Default/0-Layer/Cast-op1"
    # A browser's numbers end at 2**53, and JSON knows no NaN.
    assert found["columns"]["flops"] == str(1 << 60) and found["columns"]["aic_mac_ratio"] is None
    assert timeline.kernel(index, FRAMES, 99) is None


def test_the_nearest_kernel_is_the_running_one_then_the_next_then_the_last(data_root):
    index = index_of(data_root)
    compute = lane(index, "compute").number
    assert [timeline.nearest(index, compute, at) for at in (50, 105, 125, 150, 999)] == [0, 1, 2, 3, 3]
    assert timeline.nearest(index, 99, 0) is None


def test_a_layer_and_its_block_are_found_where_they_first_work(data_root):
    index = index_of(data_root)
    assert timeline.range_of_layer(index, 1, 0, 400) == (200, 300)
    assert timeline.range_of_layer(index, 1, 0, 400, "ffn_up") == (200, 300)
    assert timeline.range_of_layer(index, 1, 0, 400, "qkv") is None
    assert timeline.range_of_layer(index, 5, 0, 400) is None


def test_kernels_without_times_or_places_still_make_a_timeline(data_root):
    start = pl.when(pl.col("type") == "Cast").then(None).otherwise("start_ns").alias("start_ns")
    frame = kernels().drop("class", "part", "layer", "block", "pass", "micro_batch")
    frame = frame.with_columns(start, step=pl.lit(None, pl.String))
    index = index_of(data_root, kernels=frame)
    assert [found.kind for found in index.lanes] == ["compute", "communication", "free", "computing"]
    assert index.kernels == 3
    assert timeline.chosen_step(index, "7") == [None, 0, 400]
    assert timeline.boxes(index, 0, 400, 10)


def test_no_kernels_at_all_make_an_empty_timeline(data_root):
    index = index_of(data_root, kernels=kernels().clear())
    assert (index.kernels, index.end, timeline.boxes(index, 0, 10, 10)) == (0, 0, {})
    assert timeline.sums(index, 0, 10)["kernels"] == 0


def test_a_half_written_index_is_made_again(data_root):
    folder = data_root / "frames" / kept(data_root)
    (folder / "timeline1.bin").write_bytes(b"cut short")
    index = open_index(FRAMES)
    assert index is not None and index.kernels == 5


@pytest.fixture
def digested(api: ApiClient, project: Any, tmp_path: Path) -> Dump:
    """A synthetic rank, uploaded and digested as any other."""
    truth = write_dump(tmp_path, steps=2)
    contents = {name: path.read_bytes() for name, path in dump_files(truth.folder).items()}
    answer = api.announce(make_run(project).pk, contents).json()
    api.send(answer["dump"]["id"], contents)
    api.post(f"/dumps/{answer['dump']['id']}/complete")
    tasks.digest_dump(answer["dump"]["id"])
    return Dump.objects.get()


def test_boxes_of_a_digested_dump_sum_to_its_kernels_at_every_zoom(digested):
    index = open_index(digested.frames)
    assert index is not None
    rows = pl.read_parquet(storage.table_path(digested.frames, "kernels")).to_dicts()
    expected = sum(row["duration_ns"] for row in rows if row["kind"] == "compute")
    numbers = [str(found.number) for found in index.of_kind("compute")]
    for buckets in (1, 7, 64, 1024):
        found = timeline.boxes(index, 0, index.end, buckets)
        assert sum(sum(found[number].get("u", found[number]["d"])) for number in numbers) == expected
        assert sum(sum(found[number].get("n", [1] * len(found[number]["s"]))) for number in numbers) == sum(
            row["kind"] == "compute" for row in rows
        )


def test_sums_of_a_step_are_those_of_its_kernels(digested):
    index = open_index(digested.frames)
    assert index is not None
    rows = pl.read_parquet(storage.table_path(digested.frames, "kernels")).to_dicts()
    label, begin, end = index.steps[1]
    casts = sum(row["duration_ns"] for row in rows if row["step"] == label and row["class"] == "cast")
    found = {index.classes[code]: ns for code, ns, _count in timeline.sums(index, begin, end)["classes"]}
    assert found["cast"] == casts
    layer = sum(row["duration_ns"] for row in rows if row["step"] == label and row["layer"] == 1)
    assert {tuple(row[:2]): row[2] for row in timeline.sums(index, begin, end)["layers"]}[("layer", 1)] == layer


def test_the_views_answer_their_owner_within_twelve_queries(shown, client, django_assert_max_num_queries):
    params = {"layer": 1, "step": 7, "begin": 0, "end": 400, "q": "cast", "row": 1}
    for path in ("", *(f"timeline/{name}" for name in ("", "boxes/", "sums/", "find/", "kernel/"))):
        with django_assert_max_num_queries(12):
            assert client.get(address(shown, path, **params)).status_code == 200, path


def test_the_description_names_lanes_places_and_where_to_look(shown, client):
    found = client.get(address(shown, "timeline/", layer=1)).json()
    assert [row["name"] for row in found["lanes"]] == [
        "Steps", "Layers", "Blocks", "Stream 3", "Group …097", "Free",
    ]  # fmt: skip
    assert found["places"][2][0].startswith("Layer ") and found["step"] == ["7", 0, 400]
    assert found["focus"] == [200, 300]


def test_strangers_find_nothing_and_visitors_must_sign_in(shown):
    stranger = Client()
    stranger.force_login(make_user("mallory"))
    paths = ["", *(f"timeline/{name}" for name in ("", "boxes/", "sums/", "find/", "kernel/")), "trace.json"]
    for path in paths:
        assert stranger.get(address(shown, path, row=1)).status_code == 404, path
        assert Client().get(address(shown, path)).status_code == 302, path


def test_a_rank_without_kernels_has_a_page_and_no_timeline(shown, client):
    Dump.objects.update(frames="")
    page = client.get(address(shown)).content.decode()
    assert "No kernels are kept for this rank" in page and "data-timeline" not in page
    assert client.get(address(shown, "timeline/")).status_code == 404


class SweptMeanwhile(QueryDict):
    """Parameters of a request during which a sweep comes: it takes the tables when `name` is asked for."""

    folder: Path
    name: str

    def get(self, key: Any, default: Any = None) -> Any:
        if key == self.name:
            shutil.rmtree(self.folder)
        return super().get(key, default)


@pytest.mark.parametrize(
    ("view", "name", "params"),
    [
        (step_views.step_find, "q", {"q": "cast"}),
        (step_views.step_kernel, "row", {"row": "1"}),
    ],
)
def test_tables_that_a_sweep_takes_between_index_and_rows_are_not_there(shown, settings, rf, view, name, params):
    request = rf.get("/")
    request.user = shown.capture.run.project.members.get().user
    request.GET = SweptMeanwhile(urlencode(params), mutable=True)
    request.GET.folder, request.GET.name = settings.DATA_ROOT / "frames" / FRAMES, name
    with pytest.raises(Http404):
        view(request, shown.capture_id, shown.rank)


@pytest.mark.parametrize("text", ["abc", "-5", "1e9", "9" * 30, "²", "0x10", ""])
def test_numbers_that_are_none_do_no_harm(shown, client, text):
    for path in ("timeline/boxes/", "timeline/sums/", "timeline/find/"):
        params = {"begin": text, "end": text, "buckets": text, "q": "cast"}
        assert client.get(address(shown, path, **params)).status_code == 200, path
    assert client.get(address(shown, "timeline/kernel/", row=text, lane=text, at=text)).status_code in (200, 404)


def test_boxes_may_be_kept_by_the_browser_only_under_the_digest_they_are_of(shown, client):
    assert "max-age" in client.get(address(shown, "timeline/boxes/", v=FRAMES))["Cache-Control"]
    assert "no-store" in client.get(address(shown, "timeline/boxes/", v="other"))["Cache-Control"]


def test_the_trace_holds_every_kernel_on_the_thread_of_its_lane(shown, client):
    response = client.get(address(shown, "trace.json"), headers={"Accept-Encoding": "identity"})
    events = json.loads(b"".join(response.streaming_content))["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = [
        (threads[event["tid"]], event["cat"], event["ts"], event["dur"])
        for event in events
        if event["ph"] == "X" and "args" in event
    ]
    assert found == [
        ("Stream 3", "MatMul", 0.0, 0.1), ("Stream 3", "Cast", 0.11, 0.01), ("Stream 3", "Cast", 0.12, 0.01),
        ("Stream 3", "MatMul", 0.2, 0.1), ("Group …097 097", "hcom_allReduce_", 0.25, 0.15),
    ]  # fmt: skip
    assert [event["name"] for event in events if event.get("cat") == "blocks"] == ["qkv", "ffn_up"]
    assert response["Content-Disposition"] == 'attachment; filename="rank0.trace.json"'


def test_a_trace_of_one_step_holds_that_step_and_travels_packed(data_root, shown, client):
    later = kernels().with_columns(pl.col("start_ns") + 1000, step=pl.lit("8"))
    Dump.objects.update(frames="2-0123456789ab")
    write_frames(data_root / "frames" / "2-0123456789ab", {"kernels": pl.concat([kernels(), later])})
    response = client.get(address(shown, "trace.json", step=8), headers={"Accept-Encoding": "gzip"})
    assert response["Content-Encoding"] == "gzip"
    events = json.loads(gzip.decompress(b"".join(response.streaming_content)))["traceEvents"]
    assert {event["args"]["step"] for event in events if event["ph"] == "X" and "args" in event} == {"8"}
    assert sum(event["ph"] == "X" and "args" in event for event in events) == 5


def test_uploaded_files_are_listed_and_come_back_byte_for_byte(digested, client, project):
    owner = make_user("bob")
    make_member(project, owner)
    client.force_login(owner)
    names = [file["name"] for file in digested.files]
    at = names.index("ASCEND_PROFILER_OUTPUT/kernel_details.csv")
    listed = client.get(f"/dumps/{digested.pk}/files/").content.decode()
    assert all(name in listed for name in names)
    response = client.get(f"/dumps/{digested.pk}/files/{at}/")
    data = b"".join(response.streaming_content)
    assert data == storage.blob_path(digested.files[at]["sha256"]).read_bytes()
    assert response["Content-Disposition"] == 'attachment; filename="kernel_details.csv"'
    assert response["Content-Type"] == "application/octet-stream" and response["X-Content-Type-Options"] == "nosniff"


def test_files_that_are_kept_no_more_are_named_and_not_offered(digested, client, project):
    owner = make_user("bob")
    make_member(project, owner)
    client.force_login(owner)
    storage.remove_blob(digested.files[0]["sha256"])
    listed = client.get(f"/dumps/{digested.pk}/files/").content.decode()
    assert "no longer kept" in listed and f"/dumps/{digested.pk}/files/0/" not in listed
    assert client.get(f"/dumps/{digested.pk}/files/0/").status_code == 404
    assert client.get(f"/dumps/{digested.pk}/files/999/").status_code == 404


def test_strangers_get_no_files(digested):
    stranger = Client()
    stranger.force_login(make_user("mallory"))
    assert stranger.get(f"/dumps/{digested.pk}/files/").status_code == 404
    assert stranger.get(f"/dumps/{digested.pk}/files/0/").status_code == 404


def test_a_downloaded_file_has_a_plain_name():
    assert downloads.safe_name("a/b/step_trace_time.csv") == "step_trace_time.csv"
    assert downloads.safe_name('a/..\\evil"\r\n.csv') == "_evil___.csv"
    assert downloads.safe_name("a/.hidden") == "hidden"
    assert downloads.safe_name("trace_view.json", packed=True) == "trace_view.json.gz"
    assert downloads.safe_name("dump.tar.gz", packed=True) == "dump.tar.gz"
