from __future__ import annotations

import pytest

from dashboard.runs.templatetags import drawing, units, words

N = units.NARROW


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, f"0{N}ns"),
        (750, f"750{N}ns"),
        (1_500, f"1.50{N}µs"),
        (2_706_000_000, f"2,706{N}ms"),
        (84_200_000, f"84.2{N}ms"),
        (12_000_000_000, f"12.0{N}s"),
        (-84_200_000, f"-84.2{N}ms"),
    ],
)
def test_times_take_the_unit_that_reads_best(value, text):
    assert units.ns_text(value) == text


def test_bytes_are_binary():
    assert units.bytes_text(62.5 * 2**30) == f"62.5{N}GiB"
    assert units.bytes_text(0) == f"0{N}B"


def test_unknown_is_a_dash_with_a_title_and_never_zero():
    for written in (units.ns(None), units.size(None), units.percent(None), units.number(None), units.known("")):
        assert "—" in written and 'title="unknown"' in written and "0" not in written


def test_zero_is_zero():
    assert units.percent(0.0) == f"0{N}%"
    assert units.us(0.0) == f"0{N}ns"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, f"100{N}%"),
        (0.384, f"38.4{N}%"),
        (0.0004, f"<{N}0.1{N}%"),
        (0.001, f"0.1{N}%"),
        (0.99951, f">{N}99.9{N}%"),
        (0.999, f"99.9{N}%"),
        (1.0321, f"103.2{N}%"),
    ],
)
def test_a_share_that_is_not_quite_nothing_or_all_is_not_written_as_such(share, text):
    assert units.percent(share) == text


def test_a_difference_of_shares_is_in_points():
    assert units.signed(0.043, "percent") == f"+4.3{N}pts"
    assert units.signed(-0.00001, "percent") == f"+0.0{N}pts"
    assert units.signed(-2_000_000, "duration") == f"−2.00{N}ms"


def test_a_difference_of_many_times_is_written_in_whole_percent():
    assert units.signed(0.0649, "relative") == f"+6.5{N}%"
    assert units.signed(110.567, "relative") == f"+11,057{N}%"
    assert units.signed(-0.5, "relative") == f"−50.0{N}%"


def test_a_long_name_wraps_after_slashes_and_underscores_alone():
    name = "layers/0-Layer/aclnnAdd_<AddAiCore>__586"
    shown = words.breakable(name)
    assert shown.split("<wbr>") == ["layers/", "0-Layer/", "aclnnAdd_", "&lt;AddAiCore&gt;__", "586"]
    assert words.breakable("MatMul") == "MatMul"


def test_counts_are_whole_where_they_are():
    assert (units.times(64.0), units.times(1350), units.times(2.5)) == ("64", "1,350", "2.50")


def test_lost_time_in_npu_hours():
    # 450 ms a step on 8 cards: 3.6 s a step, 3 600 s in a thousand.
    assert units.npu_hours(450e6 * 8 * 1000) == "1.00"
    assert (units.npu_hours(1e6), units.npu_hours(0.0)) == ("<\u202f0.001", "0")


def test_a_line_is_cut_where_a_value_is_unknown():
    assert [len(piece) for piece in drawing.polyline([1, 2, None, 3], 100, 20)] == [2, 1]


def test_noise_stays_a_flat_line():
    ((_first, low), (_second, high)) = drawing.polyline([100, 101], 100, 20, 0, 0.5)[0]
    assert abs(low - high) < 1


def test_warm_up_is_left_out_of_a_line():
    assert drawing.without_warmup([166_756, None, 3000, 2700, 2710]) == [3000, 2700, 2710]


def test_evidence_is_written_in_the_unit_its_key_ends_in():
    assert words.figure(1500.0, "cast_us") == f"1.50{N}ms"
    assert words.figure(0.12, "cast_ratio") == f"12.0{N}%"
    assert words.figure([1, 2], "shape") == "1, 2"
    assert words.figure_name("cast_us") == "Cast"


def test_chinese_sentences_follow_each_other_without_a_blank():
    assert words.tight("通信受限。 单步耗时 1,891 ms， 其中") == "通信受限。单步耗时 1,891 ms，其中"
    assert words.tight("Bound. A step, then") == "Bound. A step, then"
