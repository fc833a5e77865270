"""The sums that charts of long runs are drawn from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from dashboard.ingest.steps import store_steps
from dashboard.runs import queries
from dashboard.runs.models import Run, StepSums
from tests.factories import make_run


def store(run: Run, losses: dict[int, float | None], **options: Any) -> None:
    store_steps(run, "log", [{"step": step, "loss": loss} for step, loss in losses.items()], **options)


@pytest.mark.django_db
def test_a_chart_of_a_long_run_shows_the_means_that_its_records_give():
    run, other = make_run(key="long"), make_run(key="short")
    store(run, {0: 1.0, 1: 2.0, 59: 6.0, 60: 5.0, 79: None, 100: None, 120: None, 89_999: 7.0})
    store(other, {61: 3.0, 62: 4.0})
    series, stride = queries.run_series([run.pk, other.pk], "loss")
    # 90 000 steps in 1 500 points
    assert stride == 60
    assert series == {run.pk: [(0, 3.0), (60, 5.0), (120, None), (89_999, 7.0)], other.pk: [(61, 3.5)]}


@pytest.mark.django_db
def test_the_points_of_long_runs_are_whole_blocks_of_sums():
    run = make_run()
    store(run, {0: 1.0, 69: 2.0, 70: 3.0, 79: 4.0, 80: 5.0, 93_000: 6.0})
    # 93 001 steps in 1 500 points would be 63 a point
    assert queries.run_series([run.pk], "loss") == ({run.pk: [(0, 2.5), (80, 5.0), (93_000, 6.0)]}, 80)


@pytest.mark.django_db
def test_a_later_record_of_a_step_changes_its_sum_and_known_values_stay():
    run = make_run()
    store(run, {5: 1.0, 6: 3.0})
    store(run, {6: 5.0, 39: 8.0})
    store(run, {6: 100.0, 7: 6.0}, update=False)
    rows = StepSums.objects.order_by("block").values_list("block", "first_step", "loss_sum", "loss_count", "lr_sum")
    assert list(rows) == [(0, 5, 12.0, 3, None), (1, 39, 8.0, 1, None)]


@pytest.mark.django_db(transaction=True)
def test_writers_of_one_block_at_once_lose_nothing():
    run = make_run()

    def write(first: int) -> None:
        for step in range(first, 1000, 4):
            store(run, {step: 1.0})
        connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    rows = StepSums.objects.order_by("block").values_list("loss_sum", "loss_count")
    assert list(rows) == [(20.0, 20)] * 50
