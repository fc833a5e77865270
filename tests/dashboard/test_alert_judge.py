"""Hand-made series: what must be told, when, and what must not."""

from __future__ import annotations

import random

import pytest

from dashboard.alerts.judge import Regression, judge, noise
from dashboard.alerts.rules import BY_METRIC

MFU, CAST = BY_METRIC["mfu"], BY_METRIC["cast_ratio"]


def unknown() -> None:
    return None


def told(values, rule=MFU, spread=unknown):
    found = judge(values, rule, spread)
    return found and (found.start, found.confirmed_by)


def test_two_captures_confirm_a_move():
    assert judge([0.40, 0.41, 0.40, 0.36, 0.37], MFU, unknown) == Regression(3, 0.40, pytest.approx(0.365), "points")


def test_one_capture_waits_for_a_second():
    assert told([0.40, 0.40, 0.36]) == (2, "waiting")


@pytest.mark.parametrize(
    ("deviation", "how"), [(0.013, "spread"), (0.0134, "waiting"), (0.0, "spread"), (None, "waiting")]
)
def test_one_capture_is_enough_where_three_deviations_leave_the_old_level_out(deviation, how):
    assert told([0.40, 0.36], spread=lambda: deviation) == (1, how)  # 0.04 = 3 x 0.01333


def test_the_spread_is_asked_for_only_where_it_decides():
    def never():
        raise AssertionError

    assert told([0.40, 0.36, 0.36], spread=never) == (1, "points")
    assert told([0.40, 0.40], spread=never) is None


def test_a_series_that_climbs_is_held_against_its_newest_level():
    # The story of the demo: 0.384 is better than half of what was, and 6 % under what was last.
    climb = [0.220, 0.246, 0.259, 0.274, 0.359, 0.376, 0.385, 0.396, 0.404, 0.410, 0.409, 0.384]
    found = judge(climb, MFU, lambda: 0.0001)
    assert found == Regression(11, 0.409, 0.384, "spread")


def test_passing_the_limit_counts_however_small_the_step():
    assert told([0.0495, 0.0501, 0.0502], CAST) == (1, "points")
    assert told([0.0495, 0.0499, 0.0499], CAST) is None


def test_a_single_outlier_before_does_not_become_the_level():
    assert told([0.40, 0.40, 0.52, 0.40, 0.40]) is None


def test_better_is_never_told():
    assert told([0.30, 0.40, 0.40, 0.40]) is None
    assert told([0.12, 0.03, 0.03], CAST) is None


def test_a_shift_that_drowns_in_noise_is_found_by_its_level():
    noisy = random.Random(1)
    values = [0.40 * (1 + noisy.gauss(0, 0.012)) for _ in range(30)]
    shifted = [*values, *(0.385 * (1 + noisy.gauss(0, 0.012)) for _ in range(25))]
    starts = [found.start for end in range(31, 56) if (found := judge(shifted[:end], MFU, unknown)) is not None]
    assert starts and 28 <= starts[-1] <= 33


@pytest.mark.parametrize("deviation", [0.002, 0.01, 0.02])
def test_noise_alone_is_hardly_ever_told(deviation):
    noisy = random.Random(7)
    values = [0.40 * (1 + noisy.gauss(0, deviation)) for _ in range(150)]
    found = [told(values[:end]) for end in range(12, 150)]
    assert len({one[0] for one in found if one and one[1] == "points"}) <= 3


def test_noise_counts_neither_climbs_nor_steps():
    assert noise([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == 0
    assert noise([1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]) == 0
    # Every value is one off its neighbours' mean, twice as far as they lie from the middle.
    assert noise([1.0, 2.0] * 5) == pytest.approx(1.4826 / 1.5**0.5)


def test_a_short_series_has_no_noise_to_speak_of():
    assert noise([1.0, 9.0, 1.0]) == 0
