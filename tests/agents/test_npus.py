from __future__ import annotations

import os

import pytest
from stepscope_agent import npus

from agent_dumps import write

INFO = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 2     910B3               | OK            | 95.9        49                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3162 / 65536         |
+===========================+===============+====================================================+
| 5     910B3               | Alarm         | 91.2        81                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3162 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 2       0                 | 4242          | python                   | 3162                    |
+===========================+===============+====================================================+
"""
TWO_CHIPS = """\
| 0     Ascend910           | OK            | 180.2       41                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3402 / 65536         |
| 0     Ascend910           | OK            | -           40                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3402 / 65536         |
"""


def test_chips_are_numbered_as_device_ids_are():
    found, cards = npus.parsed(INFO)
    assert found == [{"id": 0, "chip": "910B3", "health": "OK"}, {"id": 1, "chip": "910B3", "health": "Alarm"}]
    assert cards == [2, 5]


@pytest.mark.parametrize(
    ("chips", "soc"),
    [
        (["910B3", "910B3"], "Ascend910B3"),
        (["Ascend910B4-1"], "Ascend910B4-1"),
        (["Ascend910"], None),  # every generation's tool says that of some chips
        (["910B"], None),
        (["910B3", "910B4"], None),
        ([], None),
    ],
)
def test_the_chip_of_a_run_is_told_where_it_is_one_exact_name(chips, soc):
    assert npus.soc_of([{"id": number, "chip": chip} for number, chip in enumerate(chips)]) == soc


def test_cards_of_two_chips_count_twice():
    found, cards = npus.parsed(TWO_CHIPS)
    assert ([npu["id"] for npu in found], cards) == ([0, 1], [0, 0])


@pytest.mark.parametrize("text", ["", "no such device\n", "|||||\n| 0 | x |\n", INFO[:300]])
def test_anything_else_is_no_npu(text):
    assert npus.parsed(text) == ([], [])


def smi(tmp_path, body):
    path = write(tmp_path / "bin" / "npu-smi", "#!/bin/sh\n" + body)
    os.chmod(path, 0o755)
    return str(tmp_path / "bin")


def test_serial_numbers_are_asked_for_card_by_card(tmp_path, monkeypatch):
    write(tmp_path / "info.txt", INFO)
    body = 'if [ "$2" = -t ]; then echo "   Serial Number : S$5"; else cat %s; fi' % (tmp_path / "info.txt")
    monkeypatch.setenv("PATH", smi(tmp_path, body), prepend=os.pathsep)
    assert [(npu["id"], npu["serial"]) for npu in npus.npus()] == [(0, "S2"), (1, "S5")]


@pytest.mark.parametrize("body", ["exit 1", "kill -9 $$", "printf '\\377\\376'"])
def test_a_broken_npu_smi_tells_nothing(tmp_path, monkeypatch, body):
    monkeypatch.setenv("PATH", smi(tmp_path, body), prepend=os.pathsep)
    assert npus.npus() == []


def test_the_driver_tells_its_version(tmp_path, monkeypatch):
    path = write(tmp_path / "version.info", "package_name=Ascend-hdk\nVersion=24.1.rc2\nascendhal_version=7.35\n")
    monkeypatch.setattr(npus, "DRIVER_FILES", (str(tmp_path / "absent"), path))
    assert npus.driver_version() == "24.1.rc2"
    monkeypatch.setattr(npus, "DRIVER_FILES", (str(tmp_path / "absent"),))
    assert npus.driver_version() is None
