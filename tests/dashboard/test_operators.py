"""Operators of a rank by type, shape and name, from its report entry and from its Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.facts.cores import BOUNDS, UNBOUND
from analysis.findings import RULES
from dashboard.runs import metrics
from dashboard.runs.models import Dump
from dashboard.runs.operator_rows import OperatorSearch, operators, told, types_of
from dashboard.runs.templatetags.words import operands, short_name
from tests.dashboard.page_data import write_kernels
from tests.factories import make_capture, make_dump, make_project, make_run, make_user

pytestmark = pytest.mark.django_db
ENTRY: dict[str, Any] = {
    "rank": 0,
    "steps": [{"step": "1", "warmup": True}, {"step": "2", "warmup": False}],
    "flops": {"peak_tflops": 400.0},
    "op_types": [
        {"type": "MatMulV3", "core": "AI_CORE", "count": 3, "total_us": 60.0, "share": 0.75},
        {"type": "hcom_allReduce_", "core": "COMMUNICATION", "count": 1, "total_us": 90.0, "share": None},
    ],
    "facts": {"utilisation": [{"type": "MatMulV3", "tflops": 100.0, "mac": 0.6, "mte2_cube": 0.8, "bound": "memory"}]},
}


@pytest.fixture
def dump(tmp_path: Path, settings: Any) -> Dump:
    settings.DATA_ROOT = tmp_path
    run = make_run(make_project(owner=make_user("alice")))
    made = make_dump(make_capture(run), entry=ENTRY)
    write_kernels(made)
    return made


def test_types_of_the_entry_tell_their_use_of_the_device():
    talk, product = types_of(ENTRY)
    assert (talk["share"], talk["of_peak"], talk["relative"]) == (None, None, None)
    assert (product["mean_us"], product["of_peak"], product["memory"], product["bound"]) == (20.0, 0.25, 0.8, "memory")
    assert told([talk, product]) == {"flops": True, "peak": True, "units": True}


def test_shapes_are_summed_over_judged_steps_with_tflops_and_bound(dump):
    found = operators(dump, OperatorSearch("shape"))
    assert found["total"] == 4
    rows = {row["input_shapes"]: row for row in found["rows"]}
    # 80 us of compute in step 2; 8e9 FLOPs in 40 us are 200 TFLOPS; (0.9 x 30 + 0.5 x 10) / 40 = 0.8
    first = rows["2,4;4,8"]
    assert (first["count"], first["total_us"], first["share"], first["tflops"]) == (2, 40.0, 0.5, 200.0)
    assert (first["of_peak"], first["mac"], first["bound"]) == (0.5, 0.8, "mac")
    assert rows["4,4;4,4"]["tflops"] is None
    assert rows[None]["share"] is None  # communication


def test_names_and_a_text_narrow_the_list(dump):
    found = operators(dump, OperatorSearch.from_params({"by": "name", "q": "MM_"}))
    assert sorted((row["name"], row["total_us"]) for row in found["rows"]) == [("mm_a", 30.0), ("mm_b", 30.0)]
    assert found["rows"][0]["share"] == 30 / 80  # of all compute, not of what was found


def test_types_of_the_kernels_are_those_of_the_report(dump):
    rows = operators(dump, OperatorSearch())["rows"]
    assert [(row["type"], row["total_us"], row["count"]) for row in rows] == [
        ("hcom_allReduce_", 90.0, 1),
        ("MatMulV3", 60.0, 3),
        ("Add", 20.0, 1),
    ]


def test_the_address_gives_a_page_and_htmx_the_part_alone(dump, client):
    client.force_login(dump.capture.run.project.members.get().user)
    address = f"/captures/{dump.capture_id}/operators/?rank=0&by=shape"
    page = client.get(address).content.decode()
    part = client.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "<html" in page and "<html" not in part
    assert "2×4 · 4×8" in part and "200" in part
    Dump.objects.update(frames="")
    assert "MatMulV3" in client.get(address).content.decode()  # the report's types remain


def test_operators_of_a_foreign_project_are_not_found(dump, client):
    client.force_login(make_user("bob"))
    assert client.get(f"/captures/{dump.capture_id}/operators/").status_code == 404


def test_long_names_keep_the_end_that_tells_them_apart():
    assert short_name("Kernel::KernelLaunch::Default/MatMul-op1") == "Default/MatMul-op1"
    scope = "Default/network-A/" + "layers-CellList/" * 6 + "7-Layer/attention/MatMul-op9"
    short = short_name(scope)
    assert short.startswith("…/") and short.endswith("/7-Layer/attention/MatMul-op9") and len(short) <= 97
    assert short_name(None) == ""


def test_operands_are_short_to_read():
    assert operands('"2,4;;DT_BF16;"') == "2×4 · BF16"
    assert operands(";".join("3,3" for _ in range(300))).endswith("3×3 … +294")
    assert operands(None) == ""


def test_every_finding_and_every_bound_has_a_name():
    assert {rule.__name__ for rule in RULES} <= metrics.FINDINGS.keys()
    assert {name for name, _threshold in BOUNDS.values()} | {UNBOUND} == metrics.BOUNDS.keys()
