from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from analysis.store import write_frames
from dashboard.runs import capture_charts, charts, cluster_rows, memory_rows, report_rows, trend_charts
from tests.dashboard.page_data import START, entry, item, step


def heights(spec: dict[str, Any]) -> dict[str, list[Any]]:
    return {series["name"]: series["data"] for series in spec["options"]["series"]}


def test_a_step_is_cut_into_parts_in_milliseconds():
    spec = charts.steps_of_rank(entry())
    assert heights(spec) == {"Computing": [0.6], "Exposed communication": [0.1], "Free": [0.3]}
    assert spec["table"]["rows"] == [["10", 0.6, 0.1, 0.3]]


def test_the_bubble_is_not_counted_as_communication_too():
    rows = report_rows.step_parts({"steps": [step(1000.0, 500.0, 400.0, 100.0, bubble_us=150.0)]})
    assert {row["css"]: row["us"] for row in rows} == {"compute": 500.0, "comm": 250.0, "bubble": 150.0, "free": 100.0}


def test_a_bubble_names_the_file_that_tells_it():
    told = {"bubble_us": 150.0, "bubble_source": "communication.json"}
    rows = report_rows.step_parts({"steps": [step(1000.0, 500.0, 400.0, 100.0, **told)]})
    assert [row["source"] for row in rows if "source" in row] == ["from communication.json"]


def test_steps_of_ranks_show_the_bubble_apart():
    times = {"step_time_ns": 10e6, "computing_ns": 5e6, "free_ns": 1e6}
    ranks = [SimpleNamespace(rank=n, communication_not_overlapped_ns=4e6, **times) for n in (0, 1)]
    spec = charts.steps_by_rank(ranks, {1: 3e6})
    assert heights(spec) == {
        "Computing": [5.0, 5.0], "Exposed communication": [4.0, 1.0], "Pipeline bubble": [0.0, 3.0], "Free": [1.0, 1.0]
    }  # fmt: skip


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


def test_a_step_without_a_number_is_shown_as_a_dash():
    spec = charts.steps_of_rank({"steps": [step(1000.0, 600.0, 100.0, 300.0, step=None)]})
    assert spec["table"]["rows"][0][0] == "—"


def test_captures_without_layers_have_no_line_among_those_with_some():
    spec = charts.compared_layers(["A", "B", "C"], [{}, {0: 5e3}, {0: 7e3}])
    assert [line["name"] for line in spec["options"]["series"]] == ["B", "C"]


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


def test_against_the_median_layer_cells_are_percent_above_the_median_of_their_block():
    # Attention takes 60 and 90 us in its two layers: 75 is the median, from which both are a fifth away.
    spec = charts.layer_heat(entry(), ["forward"], relative=True)
    assert spec["options"]["series"][0]["data"] == [[0, 0, 0.0], [1, 0, -20.0], [0, 1, 0.0], [1, 1, 20.0]]
    assert (spec["down"], spec["across"]) == ({"layer": [0, 1]}, {"block": ["qkv", "attention_core"]})


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


def test_mfu_of_two_models_makes_two_lines():
    spec = trend_charts.trend([point(0.4), point(0.2, run__model_name="MoE"), point(0.41)], "mfu")
    lines = spec["options"]["series"]
    assert [line["name"] for line in lines] == ["m · peak 100 TFLOPS BF16", "MoE · peak 100 TFLOPS BF16"]
    assert [at and at["value"] for at in lines[0]["data"]] == [40.0, None, 41.0]


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
    assert trend_charts.version_marks(rows) == [(2, 1, "CANN 8.3", ["CANN 8.2 → 8.3"])]


def test_a_point_of_a_trend_leads_to_its_capture():
    (line,) = trend_charts.trend([point(0.4, id=7), point(0.5, id=9)], "mfu")["options"]["series"]
    assert [at["url"] for at in line["data"]] == ["/captures/7/", "/captures/9/"]


def test_a_trend_of_unknown_values_is_empty():
    assert trend_charts.trend([point(None)], "mfu")["empty"] is True


def test_step_series_keep_their_gaps():
    spec = charts.step_series({"Loss": [(1, 10.0), (2, None), (3, 9.0)]}, "number", 1.0)
    assert spec["options"]["series"][0]["data"] == [[1, 10.0], [2, None], [3, 9.0]]


def test_profiled_windows_and_warm_up_are_shaded_on_the_axis_of_steps():
    points = [(number, 9.0) for number in range(1, 121)]
    spec = charts.step_series({"Loss": points}, "number", 1.0, [(101, 102, "step-101"), (110, 110, "step-110")], 3)
    areas = spec["options"]["series"][0]["markArea"]["data"]
    assert [(start["xAxis"], start["name"], end["xAxis"]) for start, end in areas] == [
        (101, "step-101", 102),
        (110, "step-110", 111),
        ("min", "warm-up", 3),
    ]


def test_the_band_around_the_first_loss_is_as_wide_as_the_tolerance():
    drawn = charts.step_series({"A": [(1, 10.0), (2, 5.0)], "B": [(1, 10.1), (2, 5.3)]}, "number", 1.0)
    lines = heights(charts.with_band(drawn, 0.02))
    # 2 % of 10 and of 5 to each side: drawn as what lies below the band and how high it is.
    assert lines["_low"] == [[1, 9.8], [2, 4.9]] and lines["_band"] == [[1, 0.4], [2, 0.2]]


def test_a_single_step_is_a_point_in_the_middle_of_its_axis():
    options = charts.step_series({"Loss": [(7, -5.5)]}, "number", 1.0)["options"]
    (line,) = options["series"]
    assert (line["data"], line["showSymbol"]) == ([[7, -5.5]], True)
    assert (options["xAxis"][0]["min"], options["xAxis"][0]["max"]) == (6, 8)


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


def test_fix_first_follows_the_report_and_lists_no_trifles():
    report = {
        "checklist": {"items": [item("a", "fail", recoverable_us=100.0), item("b", "pass"), item("d", "fail")]},
        "findings": [{"id": "c", "recoverable_us": 500.0, "advice": "Do c."}, {"id": "e", "recoverable_us": 0.2}],
        "fix_first": {
            "step_time_us": 1000.0,
            "mfu": 0.2,
            "items": [
                {"id": "c", "recoverable_us": 500.0},
                {"id": "a", "recoverable_us": 100.0},
                {"id": "e", "recoverable_us": 0.2},
            ],
            "recoverable_us": 550.0,
            "mfu_after": 0.4,
        },
    }
    found = report_rows.fix_first(report)
    assert [(row["id"], row["share"], row["advice"]) for row in found["items"]] == [
        ("c", 0.5, "Do c."),
        ("a", 0.1, "Do it."),
    ]
    assert (found["small"], [row["id"] for row in found["untimed"]]) == (1, ["d"])
    assert (found["total_share"], found["step_after_us"], found["mfu_after"]) == (0.55, 450.0, 0.4)
    assert report_rows.worth_us({"recoverable_us": 0.2}, report) is None
    assert report_rows.worth_us({"recoverable_us": 2.0}, report) == 2.0


def test_free_time_is_cut_by_its_causes():
    told = [{"cause": "sync", "us": 150.0, "share": 0.6}, {"cause": "launch_gap", "us": 93.0, "share": 0.37},
            {"cause": "gc", "us": 7.0, "share": 0.03}]  # fmt: skip
    rows = report_rows.waterfall({**entry(), "free_time": {"by_cause": told}})
    # 300 us are free: 60 %, 37 % and, too small to be drawn alone, 3 %.
    free = [(row["name"], round(row["us"], 6)) for row in rows if row["css"] == "free"]
    assert free == [("Host synchronisation", 180.0), ("Late launches", 111.0), ("Other free time", 9.0)]
    assert rows[-1]["us"] == pytest.approx(1000.0)


def link(src: int, dst: int, size: float | None, time: float | None) -> dict[str, Any]:
    timed = None if time is None else size
    return {"src": src, "dst": dst, "link": "HCCS", "size_bytes": size, "transit_us": time, "timed_bytes": timed}


def test_a_link_matrix_shows_bytes_time_or_their_quotient():
    links = [link(0, 1, 2_000_000, 100.0), link(1, 0, 1_000_000, None)]
    assert cluster_rows.link_matrix(links)["cells"] == [(1, 0, 20.0)]
    assert cluster_rows.link_matrix(links, "size")["cells"] == [(0, 1, 1_000_000), (1, 0, 2_000_000)]
    assert cluster_rows.link_matrix(links, "time")["cells"] == [(1, 0, 100.0)]
    assert cluster_rows.link_matrix([*links, link(0, 1, 9_000_000, None)])["cells"] == [(1, 0, 20.0)]
    assert cluster_rows.link_matrix([link(0, 1, 999_999, 100.0)])["cells"] == []  # a delay, not a speed
    spec = capture_charts.links(links, "bandwidth")
    assert spec["format"] == "gbps" and spec["table"]["rows"] == [["0 → 1", 20.0]]


def test_many_ranks_share_cells_of_the_matrix():
    ring = [link(rank, (rank + 1) % 1000, 1_000_000, 10.0) for rank in range(1000)]
    matrix = cluster_rows.link_matrix(ring, "size")
    assert (matrix["block"], len(matrix["names"]), matrix["names"][0]) == (16, 63, "0–15")
    cells = {(column, row): value for column, row, value in matrix["cells"]}
    # 15 of 16 links of a block stay inside it, one leads on; the last block has 8 ranks.
    assert cells[0, 0] == 15_000_000 and cells[1, 0] == 1_000_000 and cells[62, 62] == 7_000_000
    assert len(json.dumps(capture_charts.links(ring, "size"))) < 300_000


def test_communication_is_summed_by_group():
    rows = [
        {"group": "tp", "op": "allReduce", "count": 2, "elapse_us": 30.0, "transit_us": 10.0, "size_bytes": 1_000_000},
        {"group": "dp", "op": "allGather", "count": 1, "elapse_us": 90.0, "transit_us": None, "size_bytes": None},
        {"group": "tp", "op": "allGather", "count": 1, "elapse_us": 20.0, "transit_us": 10.0, "size_bytes": 1_000_000},
    ]
    first, second = cluster_rows.group_rows({"communication": rows})
    assert (first["group"], first["elapse_us"], first["bandwidth_gbps"]) == ("dp", 90.0, None)
    assert (second["ops"], second["count"], second["elapse_us"]) == (["allReduce", "allGather"], 3, 50.0)
    assert second["bandwidth_gbps"] == 100.0  # 2 MB in 20 us
    untold = {"group": "tp", "op": "broadcast", "count": 1, "elapse_us": 9.0, "transit_us": None, "size_bytes": 5_000}
    (_, tensor) = cluster_rows.group_rows({"communication": [*rows, untold]})
    assert (tensor["size_bytes"], tensor["transit_us"], tensor["bandwidth_gbps"]) == (2_005_000, None, 100.0)


def test_stages_show_who_is_above_the_mean():
    spec = capture_charts.stages(
        [{"stage": 0, "ranks": 2, "computing_us": 900.0}, {"stage": 1, "ranks": 2, "computing_us": 1100.0}]
    )
    assert [bar["lines"][1][1] for bar in spec["options"]["series"][0]["data"]] == ["-10.0%", "+10.0%"]
    assert capture_charts.stages([{"stage": 0, "computing_us": 900.0}])["empty"]


def test_a_memory_curve_keeps_its_peak_when_thinned(tmp_path, settings):
    settings.DATA_ROOT = tmp_path
    name = "1-0123456789ab"
    times = range(0, 50_000_000, 1_000)
    frame = pl.DataFrame(
        {
            "component": "PTA",
            "time_ns": times,
            "allocated_bytes": [7 if at == 31_337_000 else 1 for at in times],
            "reserved_bytes": 9,
        }
    )
    write_frames(tmp_path / "frames" / name, {"memory": frame})
    curve = memory_rows.memory_curve(name)
    assert curve is not None and len(curve["points"]) <= 1000
    assert max(point[1] for point in curve["points"]) == 7
    spec = capture_charts.memory(curve)
    assert [line["markPoint"]["data"][0]["coord"][1] for line in spec["options"]["series"]] == [7, 9]
    assert len(json.dumps(spec)) < 100_000
    assert memory_rows.memory_curve("2-0123456789ab") is None


def test_a_thousand_ranks_stand_in_lines():
    cells = [(SimpleNamespace(rank=rank), 1.0, 0) for rank in range(1000)]
    lines = cluster_rows.grid_lines(cells)
    assert (len(lines), lines[1]["first"], len(lines[-1]["cells"])) == (32, 32, 8)
    assert len(cluster_rows.grid_lines(cells[:64])) == 1


def test_options_are_plain_json():
    assert json.loads(json.dumps(charts.waterfall_of(entry())))["format"] == "ms"
