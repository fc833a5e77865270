"""What the server's child tells of an archive or a folder, and what it is at meanwhile."""

from __future__ import annotations

import hashlib
import json
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
