from __future__ import annotations

import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.dump import dump_from_files, find_dumps, opened
from analysis.errors import BadDump
from analysis.rank import read_rank
from tests.analysis.small_dumps import FOLDER, OUTPUT, STEP_TRACE, whole_dump, write_dump


def test_a_dump_knows_rank_framework_host_and_files(tmp_path: Path):
    dump = find_dumps(whole_dump(tmp_path))[0]
    assert (dump.label, dump.framework, dump.format, dump.rank, dump.host) == (FOLDER, "torch_npu", "text", 0, "host01")
    assert dump.first(r"kernel_details\.csv") == f"{OUTPUT}/kernel_details.csv"


def test_a_folder_that_only_links_to_dumps_is_told_why_it_holds_none(tmp_path: Path):
    """Links are not followed, since a loop of them would never end."""
    dump = whole_dump(tmp_path / "there")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "rank_0").symlink_to(dump)
    with pytest.raises(BadDump, match="known; rank_0 is a link, and links are not followed"):
        find_dumps(tmp_path / "here")


def test_a_folder_of_ranks_is_ordered_by_rank(tmp_path: Path):
    for rank in (10, 2, 0):
        write_dump(
            tmp_path / f"r{rank}",
            {f"profiler_info_{rank}.json": {"rank_id": rank}, f"{OUTPUT}/step_trace_time.csv": STEP_TRACE},
        )
    assert [dump.rank for dump in find_dumps(tmp_path)] == [0, 2, 10]


def test_the_output_folder_itself_stands_for_its_dump(tmp_path: Path):
    root = whole_dump(tmp_path)
    dump = find_dumps(root / OUTPUT)[0]
    assert (dump.rank, dump.label) == (0, FOLDER)


def test_a_bare_file_is_a_dump_of_one_file(tmp_path: Path):
    root = whole_dump(tmp_path)
    dump = find_dumps(root / OUTPUT / "step_trace_time.csv")[0]
    assert list(dump.files) == ["step_trace_time.csv"]


def test_labels_from_a_server_serve_wherever_the_bytes_lie(tmp_path: Path):
    (tmp_path / "0a1b").write_text(STEP_TRACE)
    dump = dump_from_files({f"{OUTPUT}/step_trace_time.csv.gz": tmp_path / "0a1b"}, "rank_3_ascend_ms")
    assert (dump.framework, dump.rank) == ("mindspore", 3)
    assert dump.first(r"step_trace_time\.csv") == f"{OUTPUT}/step_trace_time.csv.gz"


def test_a_device_number_is_never_taken_for_a_rank(tmp_path: Path):
    root = write_dump(tmp_path, {f"{OUTPUT}/step_trace_time.csv": STEP_TRACE.replace("\n0,", "\n6,")})
    assert find_dumps(root)[0].rank is None


@pytest.mark.parametrize(
    ("info", "rank"),
    [
        ({"rank_id": 3}, 3),
        ({"rank_id": "3"}, 3),
        ({"ms_profiler_info": {"rank_id": "3", "device_id": "1"}}, 3),
        ({"rank_id": "not known"}, None),
        ({"rank_id": -1}, None),
        ({"rank_id": True}, None),
    ],
)
def test_rank_is_read_from_every_shape_of_profiler_info(info: dict[str, object], rank: int | None, tmp_path: Path):
    root = write_dump(tmp_path, {"profiler_info.json": info, f"{OUTPUT}/step_trace_time.csv": STEP_TRACE})
    assert find_dumps(root)[0].rank == rank


def test_ranks_told_differently_are_warned_of(tmp_path: Path):
    root = write_dump(tmp_path, {"profiler_info_1.json": {"rank_id": 0}, f"{OUTPUT}/step_trace_time.csv": STEP_TRACE})
    assert find_dumps(root)[0].warnings == ("rank is told differently: profiler_info says 0, file names says 1",)


def test_a_side_file_that_is_no_json_is_a_warning(tmp_path: Path):
    root = write_dump(tmp_path, {"profiler_info_0.json": "{", f"{OUTPUT}/step_trace_time.csv": STEP_TRACE})
    dump = find_dumps(root)[0]
    assert dump.rank == 0
    assert dump.warnings[0].startswith("profiler_info_0.json: line 1: is not valid JSON")


def test_legacy_files_of_several_ranks_in_one_folder_are_several_dumps(tmp_path: Path):
    for rank in (0, 1):
        (tmp_path / f"step_trace_raw_{rank}_detail_time.csv").write_text("step_num,total\n1,100\n")
    dumps = find_dumps(tmp_path)
    assert [(dump.rank, sorted(dump.files)) for dump in dumps] == [
        (0, ["step_trace_raw_0_detail_time.csv"]),
        (1, ["step_trace_raw_1_detail_time.csv"]),
    ]


def test_links_are_not_followed_out_of_the_folder(tmp_path: Path):
    root = whole_dump(tmp_path / "real")
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "loop").symlink_to(tmp_path / "seen", target_is_directory=True)
    (tmp_path / "seen" / "elsewhere").symlink_to(root, target_is_directory=True)
    with pytest.raises(BadDump, match="holds no profiler files"):
        find_dumps(tmp_path / "seen")


@pytest.mark.parametrize(
    "name",
    ["PROF_000001_20260101_ABC/device_0/data/Framework.host.vm.0.slice_0", "JOB1/training_trace.46.dev.0.slice_0.done"],
)
def test_raw_data_is_named_for_what_it_is(name: str, tmp_path: Path):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\0\1")
    with pytest.raises(BadDump, match="raw profiler data, not parsed yet"):
        find_dumps(tmp_path)


def test_nothing_and_nowhere_are_told_apart(tmp_path: Path):
    with pytest.raises(BadDump, match="holds no profiler files"):
        find_dumps(tmp_path)
    with pytest.raises(BadDump, match="does not exist"):
        find_dumps(tmp_path / "none")


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_a_zip_of_a_dump_is_a_dump(tmp_path: Path):
    member = {
        f"{FOLDER}/{OUTPUT}/step_trace_time.csv": STEP_TRACE.encode(),
        f"{FOLDER}/profiler_info_4.json": b'{"rank_id": 4}',
    }
    with opened(zipped(tmp_path / "dump.zip", member)) as dumps:
        assert [dump.rank for dump in dumps] == [4]


def test_a_tar_of_ranks_is_ranks_and_leaves_nothing_behind(tmp_path: Path):
    members = [
        (tarfile.TarInfo(f"job/rank_{rank}_ascend_pt/{OUTPUT}/step_trace_time.csv"), STEP_TRACE.encode())
        for rank in (0, 1)
    ]
    with opened(tarred(tmp_path / "job.tar.gz", *members)) as dumps:
        places = [path for dump in dumps for path in dump.files.values()]
        assert [dump.rank for dump in dumps] == [0, 1]
    assert not any(path.exists() for path in places)


@pytest.mark.parametrize(
    "name", ["../outside.csv", "a/../../outside.csv", "/etc/outside.csv", "a\\..\\..\\outside.csv", "C:/outside.csv"]
)
def test_members_that_point_outside_are_refused_by_name(name: str, tmp_path: Path):
    with (
        pytest.raises(BadDump, match="bad.zip: member .* points outside") as error,
        opened(zipped(tmp_path / "bad.zip", {name: b"x"})),
    ):
        pass
    assert "outside.csv" in error.value.reason
    with (
        pytest.raises(BadDump, match=r"bad.tar.gz: member .* points outside"),
        opened(tarred(tmp_path / "bad.tar.gz", (tarfile.TarInfo(name), b"x"))),
    ):
        pass


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(kind: bytes, tmp_path: Path):
    info = tarfile.TarInfo("kernel_details.csv")
    info.type, info.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        archive.addfile(info)
    with pytest.raises(BadDump, match="'kernel_details.csv' is a link or device"), opened(tmp_path / "bad.tar.gz"):
        pass


def test_a_link_in_a_zip_is_refused(tmp_path: Path):
    info = zipfile.ZipInfo("kernel_details.csv")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(BadDump, match="is a link or device"), opened(tmp_path / "bad.zip"):
        pass


def test_a_bomb_is_stopped_by_what_comes_out_not_by_what_it_claims(tmp_path: Path):
    path = zipped(tmp_path / "bomb.zip", {"kernel_details.csv": bytes(100 << 20)})
    assert path.stat().st_size < 200_000
    with pytest.raises(BadDump, match="bomb.zip: member 'kernel_details.csv' unpacks past the limit"), opened(path):
        pass


def test_the_same_member_twice_is_refused(tmp_path: Path):
    path = tarred(tmp_path / "twice.tar.gz", *((tarfile.TarInfo("kernel_details.csv"), b"x") for _ in range(2)))
    with pytest.raises(BadDump, match="is there twice"), opened(path):
        pass


@pytest.mark.parametrize("name", ["cut.zip", "cut.tar.gz"])
def test_a_cut_archive_is_one_clear_line(name: str, tmp_path: Path):
    data = {"kernel_details.csv": os.urandom(200_000)}
    make = (
        zipped
        if name.endswith("zip")
        else lambda path, each: tarred(path, *((tarfile.TarInfo(n), d) for n, d in each.items()))
    )
    path = make(tmp_path / name, data)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadDump, match=name), opened(path):
        pass


def test_an_archive_of_something_else_says_what_it_is_not(tmp_path: Path):
    with (
        pytest.raises(BadDump, match="photos.zip: holds no profiler files"),
        opened(zipped(tmp_path / "photos.zip", {"a.jpg": b"x"})),
    ):
        pass


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_name_without_end_is_not_read_into_memory(kind: bytes, tmp_path: Path):
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 8 << 30
    archive = tmp_path / "names.tar.xz"
    archive.write_bytes(lzma.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)))
    with pytest.raises(BadDump) as caught, opened(archive):
        pass
    assert str(caught.value).startswith("names.tar.xz: ") or "names.tar.xz: " in str(caught.value)


def test_a_side_file_of_unusual_size_is_a_warning(tmp_path: Path):
    folder = whole_dump(tmp_path / FOLDER)
    (folder / "profiler_metadata.json").write_text('{"a": "' + "x" * (17 << 20) + '"}')
    dump = find_dumps(folder)[0]
    assert dump.metadata == {} and any("16 MiB at most" in warning for warning in dump.warnings)


def test_a_rank_beyond_any_job_is_none(tmp_path: Path):
    folder = whole_dump(tmp_path / "d")
    (folder / "profiler_info_0.json").unlink()
    (folder / "profiler_info.json").write_text('{"rank_id": ' + "9" * 400 + "}")
    assert find_dumps(folder)[0].rank is None


def _pipe(path: Path) -> None:
    os.mkfifo(path)


ODD: dict[str, Callable[[Path], None]] = {
    "is a named pipe, not a file": _pipe,
    "is a folder, not a file": Path.mkdir,
    "is a link to nothing": lambda path: path.symlink_to(path.parent / "gone.csv"),
    "is a device, not a file": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("reason", ODD)
def test_what_is_no_file_is_one_line_beside_files_that_are(reason: str, tmp_path: Path):
    root = whole_dump(tmp_path)
    ODD[reason](root / OUTPUT / "memory_record.csv")
    result = read_rank(find_dumps(root)[0])
    assert result.entry["kernels"]["compute_us"] == 100.0
    about = [text for text in result.source["warnings"] if "memory_record.csv" in text]
    assert about == [f"{OUTPUT}/memory_record.csv: {reason}"]


@pytest.mark.parametrize("reason", ODD)
def test_a_dump_of_nothing_but_what_is_no_file_is_one_clear_error(reason: str, tmp_path: Path):
    root = write_dump(tmp_path, {"profiler_info_0.json": {"rank_id": "0"}})
    (root / "profiler_info_0.json").unlink()
    (root / OUTPUT).mkdir()
    ODD[reason](root / OUTPUT / "kernel_details.csv")
    with pytest.raises(BadDump, match=f"kernel_details.csv: {reason}"):
        find_dumps(root)


@pytest.mark.parametrize("reason", ["is a named pipe, not a file", "is a link to nothing"])
def test_a_path_that_is_no_file_is_never_opened(reason: str, tmp_path: Path):
    ODD[reason](tmp_path / "kernel_details.csv")
    with pytest.raises(BadDump, match=reason):
        find_dumps(tmp_path / "kernel_details.csv")


def test_databases_of_several_ranks_in_one_folder_are_a_rank_each(tmp_path: Path):
    for rank in (3, 11):
        (tmp_path / f"ascend_pytorch_profiler_{rank}.db").write_bytes(b"x")
    (tmp_path / "analysis.db").write_bytes(b"x")
    found = {dump.rank: sorted(dump.files) for dump in find_dumps(tmp_path)}
    assert found == {rank: ["analysis.db", f"ascend_pytorch_profiler_{rank}.db"] for rank in (3, 11)}
