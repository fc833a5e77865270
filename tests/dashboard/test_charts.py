from __future__ import annotations

import json
from typing import Any

import pytest

from dashboard.runs import charts, report_rows, trend_charts
from tests.dashboard.page_data import START, entry, step


def heights(spec: dict[str, Any]) -> dict[str, list[Any]]:
    return {series["name"]: series["data"] for series in spec["options"]["series"]}


def test_a_step_is_cut_into_parts_in_milliseconds():
    spec = charts.steps_of_rank(entry())
    assert heights(spec) == {"Computing": [0.6], "Exposed communication": [0.1], "Free": [0.3]}
    assert spec["table"]["rows"] == [["10", 0.6, 0.1, 0.3]]


def test_the_bubble_is_not_counted_as_communication_too():
    rows = report_rows.step_parts({"steps": [step(1000.0, 500.0, 400.0, 100.0, bubble_us=150.0)]})
    assert {row["css"]: row["us"] for row in rows} == {"compute": 500.0, "comm": 250.0, "bubble": 150.0, "free": 100.0}


def test_warm_up_steps_are_not_judged():
    slow = step(9000.0, 600.0, 0.0, 8400.0, warmup=True)
    rows = report_rows.step_parts({"steps": [slow, *entry()["steps"]]})
    assert {row["css"]: row["us"] for row in rows} == {"compute": 600.0, "comm": 100.0, "free": 300.0}


def test_the_waterfall_ends_at_the_step_time():
    rows = report_rows.waterfall(entry())
    # 3e10 FLOPs at 100 TFLOPS are 300 us of the 600 us that the step computes.
    assert [(row["css"], row["start"], row["us"]) for row in rows] == [
        ("c3", 0.0, 300.0),
        ("compute", 300.0, 300.0),
        ("comm", 600.0, 100.0),
        ("free", 700.0, 300.0),
        ("ink-2", 0.0, 1000.0),
    ]


def test_without_a_peak_the_waterfall_starts_at_computing():
    rows = report_rows.waterfall({**entry(), "flops": {"measured_flops": 3e10, "peak_tflops": None}})
    assert rows[0]["css"] == "compute" and rows[0]["us"] == 600.0


def test_layers_sum_their_passes_and_blocks():
    grid = report_rows.layer_grid(entry())
    assert grid["us"] == {
        (0, "qkv"): 120.0,
        (0, "attention_core"): 180.0,
        (1, "qkv"): 40.0,
        (1, "attention_core"): 90.0,
    }
    assert report_rows.layer_grid(entry(), ["backward"])["us"] == {(0, "qkv"): 80.0, (0, "attention_core"): 120.0}


def test_the_heat_map_counts_blocks_across_and_layers_down():
    spec = charts.layer_heat(entry(), ["forward"])
    assert spec["options"]["series"][0]["data"] == [[0, 0, 0.04], [1, 0, 0.06], [0, 1, 0.04], [1, 1, 0.09]]
    assert spec["x"] == ["QKV", "Attention core"]


def test_a_dump_without_layers_says_so():
    assert charts.layer_heat({"layers": {"parts": []}})["empty"] is True


def point(value: float | None, **more: Any) -> dict[str, Any]:
    blank = {"cann_version": "8.2", "framework_version": "2.7", "run__mode": "graph", "run__soc": "Ascend910B3"}
    more = {"peak_tflops": 100.0, "peak_dtype": "BF16", "flops_formula": "f", "world_size": 8, **more}
    return {
        "id": 1,
        "key": "k",
        "run__name": "r",
        "run__model_name": "m",
        "captured_at": START,
        "value": value,
        **blank,
        **more,
    }


def test_a_trend_never_joins_different_denominators():
    spec = trend_charts.trend([point(0.4), point(0.3, peak_tflops=200.0), point(0.41)], "mfu")
    drawn = [[None if at is None else at["value"] for at in line["data"]] for line in spec["options"]["series"]]
    assert drawn == [[40.0, None, 41.0], [None, 30.0, None]]


def test_shares_need_no_common_denominator():
    assert len(trend_charts.trend([point(0.1), point(0.2, peak_tflops=200.0)], "cast_ratio")["options"]["series"]) == 1


def test_marks_stand_where_versions_changed():
    rows = [
        point(0.4),
        point(0.4),
        point(0.3, cann_version="8.3"),
        point(0.3, cann_version=""),
        point(0.3, cann_version="8.3"),
    ]
    assert trend_charts.version_marks(rows) == [(2, "CANN 8.3", ["CANN 8.2 → 8.3"])]


def test_a_trend_of_unknown_values_is_empty():
    assert trend_charts.trend([point(None)], "mfu")["empty"] is True


def test_step_series_keep_their_gaps():
    spec = charts.step_series({"Loss": [(1, 10.0), (2, None), (3, 9.0)]}, "number", 1.0)
    assert spec["options"]["series"][0]["data"] == [[1, 10.0], [2, None], [3, 9.0]]


def test_compile_does_not_flatten_the_step_time():
    points = [(1, 100e9), *((number, 1e9) for number in range(2, 50))]
    spec = charts.step_series({"Step time": points}, "ms", 1e-6, (), 2)
    assert spec["options"]["yAxis"][0]["max"] == 1200


def test_numbers_are_rounded_to_keep_json_small():
    assert charts.rounded(1234.56789) == 1234.6
    assert charts.rounded(None) is None


@pytest.mark.parametrize("values", [[], [None, None]])
def test_no_values_have_no_colours(values):
    assert report_rows.quantiles(values) == values


def test_colours_span_the_range():
    assert report_rows.quantiles([10.0, 15.0, None, 20.0]) == [0, 3, None, 5]


def test_fix_first_is_by_time_won_and_says_what_mfu_follows():
    report = {
        "checklist": {"items": [{"id": "a", "status": "fail", "recoverable_us": 100.0}, {"id": "b", "status": "pass"}]},
        "findings": [{"id": "c", "recoverable_us": 500.0}],
    }
    rows = report_rows.fix_first(report, 1000.0, 0.2)
    # Half of the step gone doubles MFU.
    assert [(row["id"], row["share"], row["mfu_after"]) for row in rows][0] == ("c", 0.5, 0.4)
    assert [row["id"] for row in rows] == ["c", "a"]


def test_options_are_plain_json():
    assert json.loads(json.dumps(charts.waterfall_of(entry())))["format"] == "ms"
