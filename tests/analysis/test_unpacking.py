"""What the server's child tells of an archive or a folder, and what it is at meanwhile."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from analysis import archives
from analysis.cli import main
from analysis.dump import find_dumps
from analysis.errors import BadDump
from analysis.rank import read_rank
from analysis.unpacking import find
from tests.dumps import dump_files, write_dump


def test_the_dumps_of_an_archive_are_told_with_their_files(tmp_path: Path):
    truth = write_dump(tmp_path / "made", rank=3, dp=4, steps=1)
    sent, out, told = tmp_path / "sent", tmp_path / "out", []
    sent.mkdir()
    out.mkdir()
    with zipfile.ZipFile(sent / "rank.zip", "w") as packed:
        for name, path in dump_files(truth.folder).items():
            packed.write(path, f"{truth.folder.name}/{name}")
    (found,) = find(sent, "rank.zip", out, told.append)
    assert (found["rank"], found["label"], told) == (3, truth.folder.name, ["unpacking", "looking"])
    for file in found["files"]:
        data = Path(file["path"]).read_bytes()
        assert data == dump_files(truth.folder)[file["name"]].read_bytes()
        assert (file["size"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_an_archive_of_too_many_members_is_refused_before_one_is_written(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 10)
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as packed:
        for number in range(11):
            packed.writestr(f"a_ascend_pt/{number}.csv", b"")
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(BadDump, match="many.zip: holds more than 10 members"):
        archives.unpack(tmp_path / "many.zip", folder)
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_folder_without_dumps_is_called_as_the_sender_called_it(tmp_path: Path, capsys):
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "notes.txt").write_text("nothing")
    assert main(["find", f"--path={tmp_path / 'sent'}", "--name=my folder", f"--out={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("my folder: ")
    assert not (tmp_path / "found.json").exists()


def test_what_a_digest_is_at_is_told_in_order_and_the_last_of_it_stands_in_the_file(tmp_path: Path):
    truth, told = write_dump(tmp_path / "made", rank=0, steps=1), []
    read_rank(find_dumps(truth.folder)[0], told.append)
    assert told == ["reading", "layers", "sums"]
    order = tmp_path / "files.json"
    files = {name: str(path) for name, path in dump_files(truth.folder).items()}
    order.write_text(json.dumps({"folder": truth.folder.name, "files": files}))
    stage = tmp_path / "stage"
    assert main(["digest", f"--files={order}", f"--out={tmp_path / 'out'}", f"--stage={stage}"]) == 0
    assert stage.read_text() == "writing"


def test_folders_that_only_names_tell_of_count_as_members(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 10)
    (tmp_path / "out").mkdir()
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as packed:
        packed.writestr("a/b/c/1.csv", b"")  # a file, three folders
        packed.writestr("a/b/d/2.csv", b"")  # a file, one new folder
        packed.writestr("e/f/g/h/3.csv", b"")  # a file, four folders: eleven
    with pytest.raises(BadDump, match="many.zip: holds more than 10 members"):
        archives.unpack(tmp_path / "many.zip", tmp_path / "out")


def test_a_member_below_very_many_folders_is_refused(tmp_path: Path):
    (tmp_path / "out").mkdir()
    with zipfile.ZipFile(tmp_path / "deep.zip", "w") as packed:
        packed.writestr("a/" * 2_000 + "kernel_details.csv", b"1")
    with pytest.raises(BadDump, match="deep.zip: member .* lies more than 64 folders deep"):
        archives.unpack(tmp_path / "deep.zip", tmp_path / "out")


def tar_of(name: str, data: bytes, **pax: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(name)
        member.size, member.pax_headers = len(data), pax
        tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def sparse_tar(data: bytes) -> bytes:
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.csv", "GNU.sparse.realsize": "9"}
    return tar_of("a.csv", data, **sparse)


def zip_that_lies_beyond_64_bits() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        member = zipfile.ZipInfo("a.csv")
        member.extra = struct.pack("<HHQQQ", 1, 24, *[1 << 63] * 3)  # real sizes and place, for the marks below
        archive.writestr(member, b"abc")
    data = bytearray(packed.getvalue())
    entry = data.rindex(b"PK\x01\x02")
    struct.pack_into("<LL", data, entry + 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<L", data, entry + 42, 0xFFFFFFFF)
    return bytes(data)


ODD_TARS = {
    "words for places.tar": tar_of("a.csv", b"abc", **{"GNU.sparse.map": "0,x,3", "GNU.sparse.size": "1"}),
    "no map.tar": sparse_tar(b"abc"),
    "endless map.tar": sparse_tar(b"999999999999"),
    "chain.tar": tar_of("a.csv", b"abc", comment="z")[:1024] * 5_000,
    "cut.tar.bz2": bz2.compress(tar_of("a.csv", bytes(range(256)) * 100))[:-50],
    "zip64.zip": zip_that_lies_beyond_64_bits(),
}


@pytest.mark.parametrize("name", ODD_TARS)
def test_headers_that_cannot_be_are_one_error_that_names_the_archive(tmp_path: Path, capsys, name: str):
    sent, out = tmp_path / "sent", tmp_path / "out"
    sent.mkdir()
    out.mkdir()
    (sent / name).write_bytes(ODD_TARS[name])
    assert main(["find", f"--path={sent}", f"--name={name}", f"--out={out}"]) == 2
    assert capsys.readouterr().err.startswith(f"{name}: archive is cut or damaged")


def test_a_member_without_a_name_is_refused(tmp_path: Path, capsys):
    sent, out = tmp_path / "sent", tmp_path / "out"
    sent.mkdir()
    out.mkdir()
    with zipfile.ZipFile(sent / "a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(""), b"abc")
    assert main(["find", f"--path={sent}", "--name=a.zip", f"--out={out}"]) == 2
    assert capsys.readouterr().err == "a.zip: a member has no name\n"


def test_names_that_are_no_text_are_read_with_a_mark_for_each_odd_byte(tmp_path: Path):
    truth = write_dump(tmp_path / "made", rank=3, dp=4, steps=1)
    sent, out = tmp_path / "sent", tmp_path / "out"
    sent.mkdir()
    out.mkdir()
    with tarfile.open(sent / "gbk.tar", "w", format=tarfile.GNU_FORMAT, encoding="gb18030") as packed:
        for name, path in dump_files(truth.folder).items():
            packed.add(path, f"训练/{name}")
    assert main(["find", f"--path={sent}", "--name=gbk.tar", f"--out={out}"]) == 0
    (found,) = json.loads((out / "found.json").read_text())
    assert (found["rank"], found["label"]) == (3, "训练".encode("gb18030").decode(errors="replace"))
    assert len(found["files"]) == len(dump_files(truth.folder))


@pytest.mark.parametrize("deep", [201, 900, 5_000])
def test_metadata_nested_beyond_use_is_left_out_with_a_warning(tmp_path: Path, deep: int):
    truth = write_dump(tmp_path / "made", rank=0, steps=1)
    (truth.folder / "stepscope_run.json").write_text('{"x":' + "[" * deep + "]" * deep + "}")
    (dump,) = find_dumps(truth.folder)
    assert dump.run_meta == {}
    assert "stepscope_run.json: is nested too deep for a profiler's file" in dump.warnings


def test_environment_of_half_surrogates_is_digested(tmp_path: Path, capsys):
    truth = write_dump(tmp_path / "made", rank=0, steps=1)
    odd = r'{"ENV_VARIABLES": {"A\udfff": "b\u0000", "C": "\ud83d\ude00"}}'
    (truth.folder / "profiler_metadata.json").write_text(odd)
    assert main(["report", str(truth.folder), "--json"]) == 0
    told = capsys.readouterr().out
    assert '"A�": "b�"' in told and '"C": "😀"' in told
