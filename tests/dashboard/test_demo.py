"""The demo's files show what its story says."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from django.core.management import CommandError

from analysis.config import fingerprint, read_config
from analysis.dump import find_dumps
from analysis.flops import model_flops
from analysis.peaks import find_peak
from analysis.rank import read_rank
from analysis.readers.train_log import read_log
from analysis.report import capture_report
from dashboard.demo.files import ChapterFiles, write_chapter
from dashboard.demo.management.commands.load_demo import Target, mark_reference, send
from dashboard.demo.story import AFTER_UPGRADE, BEFORE_UPGRADE, FIRST_STEP, PROFILED_STEPS, SOC, STORY, Chapter
from dashboard.runs.models import Dump, Run, StepRecord
from dashboard.runs.rollup import metrics
from tests.factories import make_project, make_token

LLAMA2_7B_FLOPS = 1.7557e14
"""Model FLOPs of one sequence of 4096 tokens: 6 x (32 x (4 x 4096^2 + 3 x 4096 x 11008) + 4096 x 32000) x 4096 for the
weights and 6 x 32 x 4096 x 4096^2 for the causal scores."""
FLOPS = {"llama2_7b": LLAMA2_7B_FLOPS, "llama2_13b": 3.3646e14, "qwen3_30b_a3b": 3.6509e13}
"""Of the second 40 layers of 5120 and 13824; of the third 16 layers with projections of 2048 x (2 x 4096 + 2 x 512) and
8 experts of 3 x 2048 x 768 a token, a head of 2048 x 151936, and 16 x 4096 x 4096 scores a token."""
PEAK_910B3 = 294.9e12


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChapterFiles]:
    return {chapter.key: write_chapter(tmp_path_factory.mktemp(chapter.key), chapter) for chapter in STORY}


def by_key(key: str) -> Chapter:
    return next(chapter for chapter in STORY if chapter.key == key)


def report(files: ChapterFiles) -> dict[str, Any]:
    results = [read_rank(dump) for dump in find_dumps(files.dumps)]
    config = read_config(files.config.read_text(), files.config.name)
    series = read_log(files.log).steps
    pairs = [(result.entry, result.source) for result in results]
    return capture_report(pairs, config=config, run={}, series=series, soc=SOC)


@pytest.mark.parametrize("chapter", STORY, ids=[chapter.key for chapter in STORY])
def test_step_time_makes_the_mfu_of_the_story(written: dict[str, ChapterFiles], chapter: Chapter) -> None:
    step = written[chapter.key].truths[0].steps[0]
    seconds = step.step_ns / 1e9
    # a sequence a step for each card
    assert FLOPS[chapter.model] / (seconds * PEAK_910B3) == pytest.approx(chapter.mfu, rel=0.003)


def test_the_first_and_the_best_step_time_worked_out_by_hand(written: dict[str, ChapterFiles]) -> None:
    # 1.7557e14 / (0.22 x 294.9e12) = 2.7062 s; 1.7557e14 / (0.41 x 294.9e12) = 1.4521 s
    assert written["llama2-7b-01"].truths[0].steps[0].step_ns == pytest.approx(2_706_200_000, rel=2e-4)
    assert written["llama2-7b-10"].truths[0].steps[0].step_ns == pytest.approx(1_452_100_000, rel=2e-4)


@pytest.mark.parametrize("chapter", STORY, ids=[chapter.key for chapter in STORY])
def test_cast_share_is_that_of_the_story(written: dict[str, ChapterFiles], chapter: Chapter) -> None:
    assert written[chapter.key].truths[0].cast_ratio == pytest.approx(chapter.cast_ratio, abs=0.0005)


@pytest.mark.parametrize("chapter", STORY, ids=[chapter.key for chapter in STORY])
def test_the_log_tells_the_same_step_time(written: dict[str, ChapterFiles], chapter: Chapter) -> None:
    files = written[chapter.key]
    steps = read_log(files.log).steps
    assert len(steps) == 200
    profiled = range(FIRST_STEP, FIRST_STEP + PROFILED_STEPS)
    times = [step["step_time_ms"] for step in steps if step["step"] > 1 and step["step"] not in profiled]
    assert median(times) == pytest.approx(files.truths[0].steps[0].step_ns / 1e6, rel=0.002)


def test_runs_differ_in_their_last_digits_of_loss_only(written: dict[str, ChapterFiles]) -> None:
    curves = [[step["loss"] for step in read_log(files.log).steps] for files in written.values()]
    assert all(10 < curve[0] < 10.5 and curve[-1] < 3.8 for curve in curves)
    for curve in curves[1:]:
        assert max(abs(a - b) / b for a, b in zip(curve, curves[0], strict=True)) < 0.002


def test_the_story_rises_until_the_upgrade(written: dict[str, ChapterFiles]) -> None:
    straight = [chapter.mfu for chapter in STORY if chapter.model == "llama2_7b"][:10]
    assert straight == sorted(straight)
    before, after = by_key(BEFORE_UPGRADE), by_key(AFTER_UPGRADE)
    assert (before.cann, after.cann) == ("8.2.RC1", "8.3.RC1")
    assert after.cast_ratio > 0.05 > before.cast_ratio
    assert after.mfu / before.mfu - 1 < -0.03
    assert before.at < after.at


def test_runs_of_one_model_and_split_can_be_compared(written: dict[str, ChapterFiles]) -> None:
    prints = {key: fingerprint(read_config(files.config.read_text(), "run.yaml")) for key, files in written.items()}
    trials = [prints.pop(key) for key in ("llama2-7b-tp2", "llama2-13b-pp4-02", "qwen3-moe-ep4-02")]
    same = [prints.pop(key) for key in list(prints) if key.startswith("llama2-7b")]
    assert len(set(same)) == 1
    assert len({same[0], *trials}) == 4


def test_config_and_peak_give_the_golden_flops(written: dict[str, ChapterFiles]) -> None:
    config = read_config(written["llama2-7b-01"].config.read_text(), "run.yaml")
    flops = model_flops(config)
    peak = find_peak(soc=SOC)
    assert flops is not None and flops.total == pytest.approx(8 * LLAMA2_7B_FLOPS, rel=1e-4)
    assert peak is not None and peak.tflops == pytest.approx(294.9, rel=1e-4)


def test_the_report_of_the_first_port_fails_what_it_should(written: dict[str, ChapterFiles]) -> None:
    made = report(written["llama2-7b-01"])
    rank = made["ranks"][0]
    assert rank["kernels"]["cast_ratio"] == pytest.approx(0.12, abs=0.0005)
    assert rank["flops"]["mfu"] == pytest.approx(0.22, rel=0.004)
    failed = {item["id"] for item in made["checklist"]["items"] if item["status"] == "fail"}
    assert failed == {"dtype_cast", "graph_sink", "fused_attention", "attention_mask"}


def test_the_report_of_the_goal_fails_nothing(written: dict[str, ChapterFiles]) -> None:
    made = report(written["llama2-7b-10"])
    assert made["checklist"]["failed"] == 0
    assert made["ranks"][0]["flops"]["mfu"] == pytest.approx(0.41, rel=0.004)


def test_the_trial_shows_its_slow_rank(written: dict[str, ChapterFiles]) -> None:
    files = written["llama2-7b-tp2"]
    assert [truth.rank for truth in files.truths] == list(range(8))
    computing = {truth.rank: truth.steps[0].computing_ns for truth in files.truths}
    assert computing[5] / computing[0] == pytest.approx(1.12, abs=0.001)
    made = report(files)
    assert {row["rank"] for row in made["cluster"]["slow_ranks"]} == {5}


def test_even_stages_shorten_the_step_by_what_the_longest_one_had_more(written: dict[str, ChapterFiles]) -> None:
    """Layers take as long in both runs; 12 on the last stage instead of 10 are a fifth more of its time."""
    before, after = ([truth.steps[0] for truth in written[f"llama2-13b-pp4-{run}"].truths] for run in ("01", "02"))
    assert before[1].computing_ns == pytest.approx(after[1].computing_ns, rel=0.01)  # 10 layers in both
    assert 1.1 < before[3].computing_ns / after[3].computing_ns < 1.2  # the head takes its time in both
    assert before[0].step_ns / after[0].step_ns == pytest.approx(0.320 / 0.286, rel=0.002)


def test_the_pipelines_report_tells_uneven_stages_until_they_are_even(written: dict[str, ChapterFiles]) -> None:
    before, after = report(written["llama2-13b-pp4-01"]), report(written["llama2-13b-pp4-02"])
    assert [before["bottleneck"]["verdict"], after["bottleneck"]["verdict"]] == ["pipeline"] * 2
    assert ["stage_imbalance" in {row["id"] for row in made["findings"]} for made in (before, after)] == [True, False]
    # 8, 10, 10 and 12 layers: a step of 8 x 12 + 28 layers' time, of which a stage works 8 x 10 on average
    assert before["cluster"]["bubble"]["theory"] == pytest.approx(1 - 80 / 124)
    assert after["cluster"]["bubble"]["theory"] == pytest.approx(3 / 11)
    assert before["cluster"]["bubble"]["measured"] > after["cluster"]["bubble"]["measured"] + 0.05
    # nothing is recomputed: what all stages did is what the model needs, though the first of them did less
    assert metrics(before)["hfu"] == pytest.approx(metrics(before)["mfu"], rel=0.02)
    assert before["ranks"][0]["flops"]["hfu"] < 0.9 * metrics(before)["hfu"]


def test_the_experts_report_names_the_busy_rank_until_the_load_is_even(written: dict[str, ChapterFiles]) -> None:
    before, after = report(written["qwen3-moe-ep4-01"]), report(written["qwen3-moe-ep4-02"])
    named = [{row["id"] for row in made["findings"]} for made in (before, after)]
    assert ["expert_load" in ids for ids in named] == [True, False]
    loads = [made["cluster"]["expert_load"]["ratio"] for made in (before, after)]
    assert loads[0] > 1.5 and loads[1] < 1.15
    assert [made["checklist"]["failed"] for made in (before, after)] == [0, 0]


def test_files_are_the_same_each_time(tmp_path: Path, written: dict[str, ChapterFiles]) -> None:
    again = write_chapter(tmp_path, by_key("llama2-7b-10"))
    first = written["llama2-7b-10"]
    assert again.log.read_bytes() == first.log.read_bytes()
    for path in sorted(first.dumps.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (again.dumps / path.relative_to(first.dumps)).read_bytes()


@pytest.mark.django_db(transaction=True)
def test_sending_a_chapter_twice_makes_one_run(tmp_path: Path, data_root: Path, live_server: Any) -> None:
    project = make_project("demo")
    target = Target(live_server.url, make_token(project), project.slug)
    chapter = by_key("llama2-7b-10")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        send(chapter, tmp_path / name, target, wait=False)
    run = Run.objects.get()
    assert (run.key, run.name, run.cann_version, run.soc) == (chapter.key, chapter.name, "8.2.RC1", SOC)
    assert run.world_size == 8
    assert run.meta["git_commit"] == chapter.commit
    dump = Dump.objects.get()
    assert dump.capture.key == f"step-{FIRST_STEP}"
    assert dump.capture.captured_at == chapter.at.replace(second=0)
    assert StepRecord.objects.filter(run=run).count() == 200


@pytest.mark.django_db(transaction=True)
def test_a_refusal_is_told_in_the_agents_words(tmp_path: Path, data_root: Path, live_server: Any) -> None:
    target = Target(live_server.url, "not-a-token", make_project().slug)
    with pytest.raises(CommandError, match="llama2-7b-10: the agent ended with 4"):
        send(by_key("llama2-7b-10"), tmp_path, target, wait=False)


@pytest.mark.django_db
def test_a_project_keeps_the_reference_it_has() -> None:
    project = make_project()
    chosen = Run.objects.create(project=project, key="chosen", name="chosen", is_reference=True)
    Run.objects.create(project=project, key=STORY[0].key, name="first")
    mark_reference(project.slug, STORY[0])
    assert list(Run.objects.filter(is_reference=True)) == [chosen]


def test_the_access_file_fills_in_what_is_not_given(tmp_path: Path, settings: Any) -> None:
    settings.DATA_ROOT = tmp_path
    with pytest.raises(CommandError, match="give --server, --token, --project"):
        Target.of({"server": None, "token": None, "project": None})
    (tmp_path / "access.json").write_text('{"url": "http://127.0.0.1:1", "token": "t", "project": "p"}')
    filled = Target.of({"server": None, "token": "mine", "project": None})
    assert filled == Target("http://127.0.0.1:1", "mine", "p")
