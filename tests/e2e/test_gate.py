"""A pipeline of builds sends a capture and asks whether it may go on: the real agent against the running product."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dumps import write_dump
from tests.e2e.test_agent import Host
from tests.live import LiveProduct, live

CONFIG = """\
model:
  model_config:
    type: LlamaConfig
    num_layers: 2
    hidden_size: 512
    num_heads: 4
    seq_length: 2048
    vocab_size: 4096
    intermediate_size: 1408
parallel_config:
  data_parallel: 1
  model_parallel: 1
  pipeline_stage: 1
runner_config:
  batch_size: 1
"""


@pytest.fixture(scope="module")
def product() -> Iterator[LiveProduct]:
    with live() as running:
        yield running


def test_a_build_with_more_casts_closes_the_gate_and_says_why(product: LiveProduct, tmp_path: Path) -> None:
    host = Host(product, tmp_path / "host")
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)

    def build(name: str, cast_ratio: float, *options: str) -> tuple[int, str, str]:
        write_dump(tmp_path / name, cast_ratio=cast_ratio, casts=frozenset({"weights"}), steps=3)
        done = host.run("upload", tmp_path / name, "--run", name, "--config", config, "--gate", *options)
        return done.code, done.out, done.err

    code, out, err = build("release", 0.04)
    assert code == 0, err
    assert "unknown, against nothing: no comparable capture" in out
    code, out, err = build("good", 0.041)
    assert (code, "pass, against release" in out) == (0, True), out + err
    code, out, err = build("bad", 0.2, "--against", "release")
    assert code == 6, out + err
    assert "gate is closed" in err and "/captures/" in err
    (line,) = [line for line in out.splitlines() if line.split()[:2] == ["fail", "cast_ratio"]]
    assert "4.0" in line and "20.0" in line


def test_one_step_against_one_step_says_what_would_tell_more(product: LiveProduct, tmp_path: Path) -> None:
    host = Host(product, tmp_path / "host")
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("num_layers: 2", "num_layers: 3"))

    def build(name: str, cast_ratio: float) -> tuple[int, str]:
        write_dump(tmp_path / name, cast_ratio=cast_ratio, casts=frozenset({"weights"}), steps=1)
        done = host.run("upload", tmp_path / name, "--run", name, "--config", config, "--gate")
        return done.code, done.out

    assert build("step-1", 0.04)[0] == 0
    # 2 points more: beyond the rule's 1 point, within three of the assumed 1 point times the root of 2
    code, out = build("step-2", 0.06)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if " cast_ratio " in line] == ["unsure"], out
    assert "how far steps lie apart is assumed: a log (--log)" in out


def test_a_strict_gate_wants_to_know(product: LiveProduct, tmp_path: Path) -> None:
    host = Host(product, tmp_path / "host")
    write_dump(tmp_path / "first")
    done = host.run("upload", tmp_path / "first", "--run", "alone", "--gate", "--strict")
    assert done.code == 6 and "alone" not in done.err and "unknown" in done.err, done.err


def test_a_baseline_that_is_no_run_of_the_project_is_refused(product: LiveProduct, tmp_path: Path) -> None:
    host = Host(product, tmp_path / "host")
    write_dump(tmp_path / "first")
    done = host.run("upload", tmp_path / "first", "--run", "lost", "--gate", "--against", "nobody")
    assert done.code == 4 and "no such run" in done.err, done.err
