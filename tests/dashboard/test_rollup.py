"""From ranks to a capture's numbers and on to its run."""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from dashboard.ingest import queue, tasks
from dashboard.ingest.steps import store_steps
from dashboard.runs import rank_evidence, rollup
from dashboard.runs.models import Capture, CaptureState, ChecklistResult, Dump, DumpState, Run
from tests.dashboard.test_digest import contents_of, digested, upload
from tests.dumps import write_dump, write_job
from tests.factories import make_capture, make_dump, make_project, make_run


def entry(rank: int = 0, step_us: float = 100.0, free_us: float = 10.0, cast_us: float = 2.0) -> dict:
    """A rank entry as a digest stores it, one judged step."""
    computing = step_us - free_us
    step = {"step": "5", "step_time_us": step_us, "computing_us": computing, "communication_us": 0.0}
    step |= {"communication_not_overlapped_us": 0.0, "overlapped_us": 0.0, "free_us": free_us, "bubble_us": 0.0}
    step |= {"preparing_us": 0.0, "device_ratio": computing / step_us, "source": "step_trace_time.csv", "warmup": False}
    kernels = {"count": 3, "compute_count": 3, "communication_count": 0, "compute_us": 50.0, "cast_us": cast_us}
    kernels |= {"cast_ratio": cast_us / 50, "movement_us": cast_us, "movement_ratio": cast_us / 50}
    memory = {"peak_allocated_bytes": 5, "peak_reserved_bytes": 7 + rank}
    return {"rank": rank, "steps": [step], "kernels": kernels, "op_types": [], "memory": memory, "facts": {"steps": 1}}


def digested_dump(capture: Capture, rank: int = 0, **numbers: float) -> Dump:
    now = timezone.now()
    return make_dump(
        capture, rank=rank, state=DumpState.DIGESTED, digested_at=now, entry=entry(rank, **numbers), source={}
    )


@pytest.fixture
def capture(db) -> Capture:
    return make_capture(make_run(make_project()), rollup_due=True)


def rolled(capture: Capture) -> Capture:
    rollup.rollup(capture.pk)
    capture.refresh_from_db()
    return capture


def test_a_capture_takes_time_of_its_slowest_rank_and_shares_over_all(capture):
    digested_dump(capture, 0, step_us=100, free_us=10, cast_us=1)
    digested_dump(capture, 1, step_us=120, free_us=45, cast_us=4)
    rolled(capture)
    assert (capture.state, capture.rank_count) == (CaptureState.READY, 2)
    assert capture.step_time_ns == 120_000
    assert capture.device_ratio == pytest.approx(1 - 55 / 220)
    assert capture.cast_ratio == pytest.approx(5 / 100)
    assert capture.peak_memory_bytes == 8
    assert "ranks" not in capture.report and "series" not in capture.report


def test_waiting_for_other_stages_is_no_exposed_communication(capture):
    told = entry()
    told["steps"][0] |= {"communication_not_overlapped_us": 60.0, "computing_us": 30.0, "bubble_us": 45.0}
    make_dump(capture, state=DumpState.DIGESTED, digested_at=timezone.now(), entry=told, source={})
    rolled(capture)
    assert capture.exposed_communication_ratio == pytest.approx(0.15)
    assert capture.verdict == "pipeline"


def test_a_run_shows_its_newest_ready_capture(capture):
    run, now = capture.run, timezone.now()
    digested_dump(capture, step_us=100)
    older = make_capture(run, captured_at=now - timedelta(days=1), rollup_due=True)
    digested_dump(older, step_us=300)
    coming = make_capture(run, captured_at=now + timedelta(days=1))
    make_dump(coming)
    for one in (capture, older):
        rolled(one)
    run.refresh_from_db()
    assert (run.step_time_ns, run.capture_count) == (100_000, 3)
    assert run.last_capture_at == coming.captured_at
    latest = ChecklistResult.objects.filter(latest=True)
    assert latest.count() == 8 and set(latest.values_list("capture", flat=True)) == {capture.pk}
    assert run.sparkline == [0.3, 0.1]


def test_a_violation_costs_its_time_on_every_card_over_the_steps_that_were_run(capture):
    run = capture.run
    Run.objects.filter(pk=run.pk).update(world_size=8)
    digested_dump(capture, 0, cast_us=20)
    rolled(capture)
    result = ChecklistResult.objects.get(capture=capture, item="dtype_cast")
    won = result.recoverable_ns
    assert won and result.lost_ns == won * 8  # one profiled step and nothing else is known
    Capture.objects.filter(pk=capture.pk).update(last_step=30, rollup_due=True)
    rolled(capture)
    result.refresh_from_db()
    assert result.lost_ns == won * 8 * 30
    store_steps(run, "log", [{"step": number, "loss": 1.0} for number in range(101, 601)])
    Capture.objects.filter(pk=capture.pk).update(rollup_due=True)
    rolled(capture)
    result.refresh_from_db()
    assert result.lost_ns == won * 8 * 500


def test_rolling_up_again_changes_nothing(capture):
    digested_dump(capture)
    rolled(capture)
    before = [Capture.objects.values().get(), list(ChecklistResult.objects.order_by("id").values())]
    Capture.objects.update(rollup_due=True)
    rolled(capture)
    after = [Capture.objects.values().get(), list(ChecklistResult.objects.order_by("id").values())]
    for row in (before[0], after[0]):
        row.pop("rolled_up")
    assert before == after


def test_what_is_not_due_is_left_alone(capture):
    Capture.objects.update(rollup_due=False)
    assert rollup.rollup(capture.pk) is None


def test_states_follow_the_dumps(capture):
    assert rollup.capture_state(capture) == CaptureState.RECEIVING
    failed = make_dump(capture, rank=0, state=DumpState.FAILED)
    assert rollup.capture_state(capture) == CaptureState.FAILED
    digested_dump(capture, 1)
    assert rollup.capture_state(capture) == CaptureState.READY
    coming = make_dump(capture, rank=2)
    assert rollup.capture_state(capture) == CaptureState.RECEIVING
    Dump.objects.filter(pk=coming.pk).update(created=timezone.now() - timedelta(hours=2))
    assert rollup.capture_state(capture) == CaptureState.READY  # a rank that never came holds up nobody
    Dump.objects.filter(pk=failed.pk).update(state=DumpState.UPLOADED)
    assert rollup.capture_state(capture) == CaptureState.DIGESTING


def test_a_capture_of_failed_dumps_alone_fails_and_keeps_the_run_as_it_was(capture):
    make_dump(capture, rank=3, state=DumpState.FAILED, error="kernel_details.csv: is empty")
    assert rolled(capture).state == CaptureState.FAILED
    assert capture.error == "rank 3: kernel_details.csv: is empty"
    run = Run.objects.get()
    assert (run.step_time_ns, run.capture_count) == (None, 1)


def test_while_ranks_are_digested_a_capture_is_summed_up_once_a_minute(capture):
    digested_dump(capture, 0)
    make_dump(capture, rank=1, state=DumpState.UPLOADED)
    assert rollup.due_captures() == [capture.pk]
    Capture.objects.update(rolled_up=timezone.now())
    assert rollup.due_captures() == []
    Dump.objects.filter(rank=1).update(state=DumpState.FAILED)
    assert rollup.due_captures() == [capture.pk]


def test_of_a_thousand_ranks_that_come_one_by_one_not_each_is_followed_by_a_rollup(capture):
    digested_dump(capture, 0)
    now = timezone.now()
    Capture.objects.update(rank_count=1000, world_size=2, rolled_up=now - timedelta(seconds=10))
    assert rollup.due_captures() == []
    Capture.objects.update(rolled_up=now - timedelta(seconds=51))
    assert rollup.due_captures() == [capture.pk]
    Capture.objects.update(rolled_up=now)
    digested_dump(capture, 1)  # the last one
    assert rollup.due_captures() == [capture.pk]


def test_the_sparkline_prefers_step_records_and_keeps_sixty_points(capture):
    run = capture.run
    store_steps(run, "log", [{"step": number, "step_time_ms": 10.0 + number % 2} for number in range(240)])
    points, metric = rollup.sparkline(run)
    assert (len(points), metric) == (60, "step_time")
    assert points == [10.5] * 60  # four steps a point: 10, 11, 10, 11


@pytest.mark.django_db(transaction=True)
def test_two_workers_never_roll_up_one_capture_at_once(settings):
    capture = make_capture(make_run(), rollup_due=True)
    digested_dump(capture)
    seen: list[object] = []

    def other_worker() -> None:
        seen.append(rollup.rollup(capture.pk))
        connection.close()

    with transaction.atomic():
        Capture.objects.select_for_update(no_key=True).get(pk=capture.pk)
        worker = Thread(target=other_worker)
        worker.start()
        worker.join(30)
    assert seen == [None]
    assert rollup.rollup(capture.pk) is not None


def test_new_step_records_make_the_newest_ready_capture_due(api, project):
    run = make_run(project)
    ready = make_capture(run, state=CaptureState.READY)
    make_capture(run, state=CaptureState.FAILED)
    api.post(f"/runs/{run.pk}/steps", {"steps": [{"step": 1, "loss": 2.0}]})
    assert list(Capture.objects.filter(rollup_due=True)) == [ready]


def test_meta_makes_the_newest_capture_due_only_when_it_says_something_new(api, project):
    run = make_run(project, meta={"soc": "Ascend910B3"})
    ready = make_capture(run, state=CaptureState.READY)
    for soc, due in (("Ascend910B3", []), ("Ascend910B4", [ready])):
        api.post(f"/projects/{project.slug}/runs", {"key": run.key, "meta": {"soc": soc}})
        assert list(Capture.objects.filter(rollup_due=True)) == due


@pytest.mark.django_db(transaction=True)
def test_what_a_run_is_told_while_its_capture_is_summed_up_counts_too(api, project):
    """The roll-up has read the run already, and lets go of the capture when it is ready."""
    run = make_run(project)
    capture = make_capture(run, state=CaptureState.DIGESTING)
    make_dump(capture, state=DumpState.DIGESTED)

    def agent() -> None:
        api.post(f"/projects/{project.slug}/runs", {"key": run.key, "meta": {"alignment": {"layers": []}}})
        connection.close()

    teller = Thread(target=agent)
    with transaction.atomic():
        locked = Capture.objects.select_for_update(no_key=True).get(pk=capture.pk)
        teller.start()
        teller.join(1)
        locked.state, locked.rollup_due = CaptureState.READY, False
        locked.save()
    teller.join(30)
    assert Capture.objects.get(pk=capture.pk).rollup_due


def test_ranks_of_a_synthetic_job_give_the_numbers_it_was_written_with(api, project, tmp_path):
    truths = write_job(tmp_path, steps=3, dp=2)
    run = make_run(project)
    for rank, truth in enumerate(truths):
        assert digested(upload(api, run.pk, contents_of(truth.folder), rank=rank)).state == DumpState.DIGESTED
    tasks.rollup_due_captures()
    capture = Capture.objects.get()
    assert (capture.state, capture.rank_count) == (CaptureState.READY, 2)
    casts = sum(truth.cast_ns for truth in truths) / sum(truth.compute_ns for truth in truths)
    assert capture.cast_ratio == pytest.approx(casts, rel=1e-6)
    slowest = max(
        median(step.computing_ns + step.communication_not_overlapped_ns + step.free_ns for step in truth.steps)
        for truth in truths
    )
    assert capture.step_time_ns == pytest.approx(slowest, rel=1e-6)
    report = api.get(f"/captures/{capture.pk}/report").json()
    assert [row["rank"] for row in report["ranks"]] == [0, 1]
    assert report["checklist"]["items"][0]["id"] == "dtype_cast"
    assert report["ranks"][0]["flops"].keys() >= {"mfu", "hfu"}


def test_series_of_a_dump_become_step_records(api, project, tmp_path):
    contents = contents_of(write_dump(tmp_path, rank=0).folder)
    contents["stepscope_steps.jsonl"] = b'{"step": 7, "loss": 2.5, "step_time_ms": 12.0}\n'
    run = make_run(project)
    digested(upload(api, run.pk, contents))
    assert list(run.steps.values_list("step", "loss", "step_time_ns", "source")) == [(7, 2.5, 12_000_000, "callback")]


LAYERS = {"method": "scope", "layer_count": 1, "parts": [{"part": "layer", "layer": 0, "blocks": []}]}


def test_what_a_rollup_adds_is_merged_into_entries_that_it_does_not_read_whole(capture):
    dump = digested_dump(capture)
    Dump.objects.filter(pk=dump.pk).update(entry={**dump.entry, "layers": LAYERS})
    rolled(capture)
    stored = Dump.objects.get(pk=dump.pk).entry
    assert stored["layers"] == LAYERS
    assert stored["flops"]["mfu"] is None and stored["bottleneck"]["verdict"]


def test_a_rank_that_was_digested_anew_keeps_its_new_entry(capture):
    dump = digested_dump(capture)
    (read,) = rank_evidence.read_ranks(capture)
    Dump.objects.filter(pk=dump.pk).update(digested_at=timezone.now(), entry={"rank": 0, "flops": {"mfu": 0.5}})
    slow = {"slow_ranks": [{"rank": 0, "kind": "host", "excess_us": 5.0}]}
    entry = {"rank": 0, "flops": {"mfu": 0.1}, "bottleneck": {}}
    assert rank_evidence.store([read], {"ranks": [entry], "cluster": slow})
    dump.refresh_from_db()
    assert (dump.entry, dump.slow_kind) == ({"rank": 0, "flops": {"mfu": 0.5}}, "")


def test_slow_ranks_and_the_others_are_marked_and_lose_their_mark_again(capture):
    for rank in range(3):
        digested_dump(capture, rank)

    def store(slow_ranks: list[dict[str, Any]]) -> None:
        ranks = rank_evidence.read_ranks(capture)
        rank_evidence.store(ranks, {"ranks": [row.entry for row in ranks], "cluster": {"slow_ranks": slow_ranks}})

    store([{"rank": 1, "kind": "host", "excess_us": 5.0}])
    rows = Dump.objects.order_by("rank").values_list("slow", "slow_kind", "excess_ns")
    assert list(rows) == [(False, "", None), (True, "host", 5_000), (False, "", None)]
    store([])
    assert list(rows.all()) == [(False, "", None)] * 3


def test_a_failed_capture_says_how_many_ranks_failed_and_the_commonest_reason(capture):
    for rank, error in enumerate(["b.csv is empty", "a.csv is cut", "a.csv is cut"]):
        make_dump(capture, rank=rank, state=DumpState.FAILED, error=error)
    assert rolled(capture).error == "3 ranks failed, 2 of them like rank 1: a.csv is cut"
    Dump.objects.filter(rank=0).update(error="a.csv is cut")
    assert rollup.failures(capture) == "3 ranks failed, all of them like rank 0: a.csv is cut"
    Dump.objects.exclude(rank=2).delete()
    assert rollup.failures(capture) == "rank 2: a.csv is cut"


def test_a_capture_of_all_ranks_is_judged_at_once_even_if_one_failed(capture):
    Capture.objects.update(world_size=2)
    digested_dump(capture, 0)
    make_dump(capture, rank=1, state=DumpState.FAILED)
    rolled(capture)
    assert rollup.to_judge() == [capture.pk]


@pytest.mark.parametrize("world_size", [2, None])
def test_a_capture_whose_ranks_may_still_come_is_judged_when_none_came_for_a_while(capture, settings, world_size):
    settings.JUDGE_AFTER_SECONDS = 60
    Capture.objects.update(world_size=world_size)
    dump = digested_dump(capture, 0)
    rolled(capture)
    assert rollup.to_judge() == [] and capture.judge_due == dump.created + timedelta(seconds=60)
    earlier = timezone.now() - timedelta(seconds=61)
    Dump.objects.update(created=earlier, uploaded_at=earlier)
    Capture.objects.update(rollup_due=True)
    rolled(capture)
    assert rollup.to_judge() == [capture.pk]


def test_a_capture_with_a_rank_on_its_way_waits_for_its_next_rollup(capture):
    Capture.objects.update(world_size=1)
    digested_dump(capture, 0)
    rolled(capture)
    make_dump(capture, rank=1)
    Capture.objects.update(rollup_due=True)
    rolled(capture)
    assert capture.judge_due is None and rollup.to_judge() == []


def test_what_is_to_be_judged_is_sent_once(capture):
    Capture.objects.update(world_size=1)
    digested_dump(capture, 0)
    before = queue.waiting("celery")
    tasks.rollup_capture(capture.pk)
    tasks.rollup_due_captures()
    assert queue.waiting("celery") == before + 1
    assert Capture.objects.get().judge_due is None
