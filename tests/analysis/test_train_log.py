from __future__ import annotations

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.errors import BadDump
from analysis.readers.train_log import MAX_LINE, read_log


@pytest.fixture
def read(tmp_path):
    def write_and_read(text, encoding="utf-8"):
        path = tmp_path / "worker.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return read_log(path)

    return write_and_read


GRAPH = (
    "2025-04-07 15:34:29,173 - [callback.py:529] - INFO - { Epoch:[  2/  3], step:[    4/   19], loss: 9.673, "
    "per_step_time: 1754ms, lr: 1e-05, overflow cond: True, loss_scale: 65536.0, global_norm: [10.5], "
    "train_throughput_per_npu: 170.523T\n"
)


def test_graph_mode_line_of_mindspore_transformers(read):
    result = read(GRAPH)
    assert result.steps == [
        {
            "step": 23,  # 19 steps of the first epoch and 4 of this one
            "loss": 9.673,
            "step_time_ms": 1754.0,
            "lr": 1e-05,
            "overflow": True,
            "loss_scale": 65536.0,
            "global_norm": 10.5,
            "tflops_per_device": 170.523,
        }
    ]
    assert (result.unreadable, result.unreadable_values, result.warnings) == (0, 0, [])


def test_pynative_line_of_an_earlier_pipeline_stage(read):
    line = (
        "{ step:[    2/   10], loss: N/A (non-last PP stage, refer to last stage for real loss), "
        "per_step_time:    710ms, "
        "lr: 1.000000e-05, grad_norm: NaN, mtp_1_loss:   3.5, indexer_loss:   0.25, throughput:  25.92T }\n"
    )
    result = read(line)
    assert result.steps == [
        {
            "step": 2,
            "loss": None,
            "step_time_ms": 710.0,
            "lr": 1e-05,
            "global_norm": None,
            "nonfinite": ["global_norm"],
            "tflops_per_device": 25.92,
            "extra_losses": {"mtp_1_loss": 3.5, "indexer_loss": 0.25},
        }
    ]
    assert result.unreadable_values == 0


def test_graph_mode_without_lr_and_with_a_pair_of_losses(read):
    result = read("{ Epoch:[1/1], step:[3/9], loss:[2.5/2.75], per_step_time: 12ms, overflow cond: False }")
    assert result.steps == [{"step": 3, "loss": 2.5, "step_time_ms": 12.0, "overflow": False}]


def test_lost_dot_makes_the_value_unknown_and_is_counted(read):
    result = read("{ step:[1/9], loss: 1.5, per_step_time: 5ms, global_norm: [1 31049] }\n" * 2)
    assert [step["global_norm"] for step in result.steps] == [None]
    assert result.unreadable_values == 2
    assert "2 values could not be read (global_norm): lines 1, 2" in result.warnings


def test_step_line_without_readable_step_is_counted(read):
    result = read(
        "{ Epoch:[1/2], step:[  ?/ 19], loss: 1.0, per_step_time: 5ms }\nother\n iteration x/100 | lm loss: 1\n"
    )
    assert result.steps == []
    assert result.unreadable == 2
    assert result.warnings == ["2 step lines could not be read: lines 1, 3", "no step lines found"]


def test_talk_about_steps_is_not_a_step_line(read):
    result = read(
        "loading step 1/3 of tokenizer\nCurrent global norm [44.3] of step 1 has been 1 times greater\nstep by step\n"
    )
    assert (result.steps, result.unreadable) == ([], 0)


def test_megatron_line_broken_in_the_middle(read):
    result = read(
        " iteration  11/50000 | elapsed time per iteration (ms):  52728.1 | learning rate:    1.499E-05 | "
        "lm loss:  1.25E+01 | loss scale:  65536.0 | grad norm:    459.628 | number of skipped\n"
        "iterations: 0 | number of nan iterations:   1 | samples per second: 9.710 | TFLOPs: 167.52 |\n"
    )
    assert result.steps == [
        {
            "step": 11,
            "loss": 12.5,
            "lr": 1.499e-05,
            "global_norm": 459.628,
            "step_time_ms": 52728.1,
            "loss_scale": 65536.0,
            "tflops_per_device": 167.52,
            "overflow": True,
        }
    ]


def test_loss_monitor_counts_steps_over_epochs_and_shares_the_epochs_mean_time(read):
    result = read(
        "epoch: 1 step: 2, loss is 4.5\nepoch: 1 step: 4, loss is 4.0\nTrain epoch time: 1200.0 ms, per "
        "step time: 300.0 ms\n"
        "epoch: 2 step: 2, loss is nan\nTrain epoch time: 400.0 ms, per step time: 100.0 ms\n"
    )
    assert result.steps == [
        {"step": 2, "loss": 4.5, "step_time_ms": 300.0},
        {"step": 4, "loss": 4.0, "step_time_ms": 300.0},
        {"step": 6, "loss": None, "nonfinite": ["loss"], "step_time_ms": 100.0},
    ]


def test_a_step_of_less_than_no_time_has_an_unknown_time(read):
    """The clock of the host was set back between two lines."""
    line = "{{ Epoch:[  1/  1], step:[ {}/ 9], loss: 5.0, per_step_time: {}ms, lr: 1e-05, overflow cond: False }}"
    result = read("\n".join([line.format(1, "-400"), line.format(2, "500")]))
    assert [step["step_time_ms"] for step in result.steps] == [None, 500.0]
    assert result.unreadable_values == 1


def test_two_lines_of_one_step_and_the_overflow_before_them(read):
    result = read(
        "[WARNING] overflow, still update, loss scale adjust to 1024.0\n"
        "[INFO] Epoch 1/200, Step 100/3995, imgsize (640, 640), loss: 11.5, lbox: 3.6, cur_lr: 0.25\n"
        "[INFO] Epoch 1/200, Step 100/3995, step time: 50.5 ms\n"
        "[INFO] Epoch 1/200, Step 200/3995, imgsize (640, 640), loss: 10.5, lbox: 3.6, cur_lr: 0.25\n"
    )
    assert result.steps == [
        {"step": 100, "overflow": True, "loss_scale": 1024.0, "loss": 11.5, "lr": 0.25, "step_time_ms": 50.5},
        {"step": 200, "loss": 10.5, "lr": 0.25},
    ]


def test_restarted_run_keeps_the_later_values(read):
    lines = [
        f"{{ step:[{step}/9], loss: {loss}, per_step_time: 5ms }}" for step, loss in ((1, 3), (2, 2), (2, 1.5), (3, 1))
    ]
    result = read("\n".join(lines))
    assert [(step["step"], step["loss"]) for step in result.steps] == [(1, 3), (2, 1.5), (3, 1)]
    assert any("1 steps occur again" in warning for warning in result.warnings)


def test_first_step_with_compilation_is_marked(read):
    result = read(
        "".join(f"{{ step:[{n}/9], loss: 1, per_step_time: {t}ms }}\n" for n, t in ((1, 9000), (2, 100), (3, 110)))
    )
    assert [step.get("compile") for step in result.steps] == [True, None, None]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1", "gb18030"])
def test_any_encoding(read, encoding):
    text = "训练开始\n" if encoding != "latin-1" else "d\xe9but\n"
    assert [step["step"] for step in read(text + GRAPH, encoding).steps] == [23]


def test_carriage_returns_colours_and_windows_line_ends(read):
    result = read(
        b"Parsing 10%\rParsing 20%\r\x1b[32m{ step:[1/9], loss: 1, per_step_time: 5ms }\x1b[0m\r\nx\r\n"
        + b"{ step:[?/9], loss: 1 }\r\n"
    )
    assert [step["step"] for step in result.steps] == [1]
    assert "1 step lines could not be read: line 3" in result.warnings


def test_step_line_after_a_long_progress_bar(read):
    assert len(read(b"Parsing [####      ] 10%\r" * 2000 + GRAPH.encode()).steps) == 1


def test_endless_line_is_cut_and_said(read):
    result = read(b"A" * (5 * 1024 * 1024) + b"\n" + GRAPH.encode())
    assert [step["step"] for step in result.steps] == [23]
    assert any(f"over {MAX_LINE} bytes" in warning for warning in result.warnings)


def test_line_over_a_chunk_border_is_whole(read):
    filler = b"x" * 1000 + b"\n"
    start = (1 << 20) - 40
    body = filler * (start // len(filler))
    result = read(body + b"y" * (start - len(body) - 1) + b"\n" + GRAPH.encode())
    assert result.steps[0]["tflops_per_device"] == 170.523


def test_gzip_is_told_by_its_bytes(read):
    assert len(read(gzip.compress(GRAPH.encode())).steps) == 1


def test_cut_gzip_keeps_what_was_read(read):
    lines = "".join(GRAPH.replace("    4/", f"{n}/") for n in range(1, 2000)).encode()
    packed = gzip.compress(lines)
    result = read(packed[: len(packed) // 2])
    assert 500 < len(result.steps) < 1500
    assert "reading stopped" in result.warnings[0]


def test_missing_file_is_one_clear_error(tmp_path):
    with pytest.raises(BadDump, match="worker.log: cannot be read"):
        read_log(tmp_path / "worker.log")


def test_empty_and_binary_files_hold_no_steps(read):
    assert read(b"").warnings == ["no step lines found"]
    assert read(bytes(range(256)) * 100).steps == []


LINES = [
    GRAPH.encode(),
    b"{ step:[    2/   10], loss:  11.75, per_step_time:    710ms, grad_norm:  19.9, throughput:  25.92T }\n",
    b" iteration  11/50000 | elapsed time per iteration (ms):  527.1 | lm loss:  1.3E+01 | loss scale: 65536.0 |\n",
    b"epoch: 1 step: 3, loss is 4.9\n",
    b"Train epoch time: 3580.766 ms, per step time: 298.397 ms\n",
    b"[INFO] Epoch 1/200, Step 100/3995, step time: 5736.71 ms\n",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=6),
    places=st.lists(st.tuples(st.integers(0, 900), st.binary(max_size=4)), max_size=6),
)
def test_damaged_logs_give_records_or_are_counted_and_never_break(read, lines, places):
    text = bytearray(b"".join(lines))
    for place, patch in places:
        at = place % (len(text) + 1)
        text[at : at + len(patch)] = patch
    if text[:2] == b"\x1f\x8b":
        return
    result = read(bytes(text))
    numbers = [step["step"] for step in result.steps]
    assert numbers == sorted(set(numbers))
    assert all(value is None or value == value for step in result.steps for value in step.values())


# Counted by eye in each file: (steps, unreadable lines, unreadable values).
REAL = {
    "megatron-npu-llama65b-2023-32npu.log": (1, 0, 0),
    "mindformers-2023-llama_7b_lora-1npu.log": (1, 0, 0),
    "mindformers-pynative-deepseekv3-2npu-worker.log": (2, 0, 0),
    "mindformers-pynative-prefixed-worker.log": (1, 0, 0),
    "mindformers-r1.5-llama2_13b-8npu-worker_0.log": (5, 0, 2),
    "mindformers-r1.6-llama3_1_8b-skip-data-8npu.log": (2, 0, 0),
    "mindformers-r1.8-qwen3_8b_lora-1npu-user-extract.txt": (7, 0, 0),
    "mindrlhf-2024-llama2_7b_rm-8npu-info.log": (1, 0, 0),
    "mindspeed-llm-fsdp2-2026.log": (3, 0, 0),
    "mindspore-models-inceptionv3-losstime.log": (2, 0, 0),
    "mindspore2.10-cpu-lossmonitor-timemonitor.log": (8, 0, 0),
    "mindyolo-2024-8npu-overflow.log": (4, 0, 0),
}


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_real_logs(dumps, name):
    result = read_log(dumps / "training-logs" / name)
    assert (len(result.steps), result.unreadable, result.unreadable_values) == REAL[name]
    assert all(step.get("step_time_ms") for step in result.steps)


@pytest.mark.real
def test_no_real_log_is_left_out(dumps):
    assert {path.name for path in (dumps / "training-logs").iterdir()} == set(REAL)
