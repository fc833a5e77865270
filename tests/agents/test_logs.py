from __future__ import annotations

import gzip
import os

import pytest
from stepscope_agent.logs import StepParser, bounded_lines, read_log, read_log_file, read_records_file

from agent_dumps import write

GRAPH = (
    "2025-04-07 15:34:30,941 - [mindformers/core/callback/callback.py:529] - INFO - { Epoch:[  2/  2], step:[    3/   19],"
    " loss: 9.673, per_step_time: 1754ms, lr: 9.981987e-06, overflow cond: False, loss_scale: 1.0,"
    " global_norm: [10.579812], train_throughput_per_npu: 170.523T"
)


def test_a_graph_mode_line_of_the_second_epoch():
    assert read_log([GRAPH]) == [
        {
            "step": 22,
            "loss": 9.673,
            "step_time_ms": 1754.0,
            "lr": 9.981987e-06,
            "overflow": False,
            "loss_scale": 1.0,
            "global_norm": 10.579812,
            "tflops_per_device": 170.523,
        }
    ]


def test_a_pynative_line():
    line = (
        "{ step:[    2/   10], loss:  11.755612, per_step_time:    710ms, load_balancing_loss:   1.106543,"
        " lr: 1.000000e-05, grad_norm:  19.926786, throughput:  25.92T }"
    )
    expected = {"step": 2, "loss": 11.755612, "step_time_ms": 710.0, "lr": 1e-05, "global_norm": 19.926786}
    assert read_log([line]) == [dict(expected, tflops_per_device=25.92)]


@pytest.mark.parametrize("text", ["[1 31049]", "[nan]", "NaN", "[]"])
def test_an_unreadable_norm_is_unknown(text):
    assert "global_norm" not in read_log([GRAPH.replace("[10.579812]", text)])[0]


@pytest.mark.parametrize("text", ["N/A (non-last PP stage, refer to last stage for real loss)", "nan", "inf"])
def test_a_loss_that_is_no_number_is_unknown(text):
    assert "loss" not in read_log([GRAPH.replace("9.673", text)])[0]


def test_the_current_loss_is_taken_not_the_average():
    assert read_log([GRAPH.replace("loss: 9.673", "loss:[9.5/9.7]")])[0]["loss"] == 9.5


def test_a_megatron_line_broken_in_the_middle():
    lines = [
        " iteration  11/50000 | consumed samples: 5632 | elapsed time per iteration (ms):  52728.1 | learning rate: 1.499E-05"
        " | lm loss:  1.376514E+01 | loss scale:  65536.0 | grad norm:    459.628 | number of skipped\n",
        "iterations: 0 | number of nan iterations:   0 | samples per second: 9.710 | TFLOPs: 167.52 |\n",
        "iterations: 0 | TFLOPs: 1.0 |\n",
    ]
    expected = {"step": 11, "loss": 13.76514, "lr": 1.499e-05, "global_norm": 459.628, "step_time_ms": 52728.1}
    assert read_log(lines) == [dict(expected, loss_scale=65536.0, tflops_per_device=167.52, overflow=False)]


def test_steps_of_loss_monitor_are_counted_over_epochs():
    lines = [
        "epoch: 1 step: 3, loss is 4.9",
        "epoch: 1 step: 12, loss is 4.5",
        "Train epoch time: 3600.0 ms, per step time: 300.0 ms",
        "epoch: 2 step: 3, loss is 4.1",
    ]
    assert read_log(lines) == [
        {"step": 3, "loss": 4.9, "step_time_ms": 300.0},  # the epoch's mean is each step's
        {"step": 12, "loss": 4.5, "step_time_ms": 300.0},
        {"step": 15, "loss": 4.1},
    ]


def test_a_two_line_report_is_one_record():
    lines = [
        "2024 [INFO] Epoch 2/200, Step 100/4000, imgsize (640, 640), loss: 11.5, lbox: 3.6, cur_lr: 0.09",
        "2024 [INFO] Epoch 2/200, Step 100/4000, step time: 654.4 ms",
    ]
    assert read_log(lines) == [{"step": 4100, "loss": 11.5, "lr": 0.09, "step_time_ms": 654.4}]


def test_a_progress_bar_in_front_does_not_hide_the_line():
    assert [row["step"] for row in StepParser().feed("12 % ###\r 13 % ###\rstep 7/25, loss: 1.5\n")] == [7]


def test_a_note_of_overflow_belongs_to_the_next_step():
    lines = [
        "[WARNING] overflow, still update, loss scale adjust to 1024.0",
        "[INFO] something else",
        "Epoch 1/300, Step 100/196, loss: 11.5",
        "Epoch 1/300, Step 101/196, loss: 11.0",
    ]
    assert read_log(lines) == [
        {"step": 100, "loss": 11.5, "overflow": True, "loss_scale": 1024.0},
        {"step": 101, "loss": 11.0},
    ]


@pytest.mark.parametrize(
    "line", ["", "\x00\xff", "step", "step:[/], loss", "iteration 1/", "epoch time: 5 ms, per step time: 0 ms"]
)
def test_other_lines_give_nothing(line):
    assert read_log([line]) == []


def test_a_monstrous_line_is_read_in_pieces(tmp_path):
    path = write(tmp_path / "worker.log", "x" * 3000000 + "\nstep 7/25, loss: 1.5\n")
    with open(path) as stream:
        assert max(len(piece) for piece in bounded_lines(stream)) <= 16 * 1024
    assert read_log_file(path) == [{"step": 7, "loss": 1.5}]


def test_records_cut_by_a_crash_are_passed_over(tmp_path):
    text = '{"step": 2, "loss": 2.0}\n{"step": 1}\nnull\n{"step": "x"}\n{"step": 2, "lr": 0.1, "loss": null}\n{"step": 3, "lo'
    assert read_records_file(write(tmp_path / "s.jsonl", text)) == [{"step": 1}, {"step": 2, "loss": 2.0, "lr": 0.1}]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "count", "last"),
    [
        ("megatron-npu-llama65b-2023-32npu.log", 1, {"step": 11, "tflops_per_device": 167.52}),
        ("mindformers-2023-llama_7b_lora-1npu.log", 1, {"step": 92, "loss": 9.902, "step_time_ms": 2068.0}),
        ("mindformers-pynative-deepseekv3-2npu-worker.log", 2, {"step": 2, "global_norm": 19.926786}),
        ("mindformers-pynative-prefixed-worker.log", 1, {"step": 100, "tflops_per_device": 12.34}),
        ("mindformers-r1.5-llama2_13b-8npu-worker_0.log", 5, {"step": 5, "global_norm": 16.986555}),
        ("mindformers-r1.6-llama3_1_8b-skip-data-8npu.log", 2, {"step": 2, "step_time_ms": 7637.0}),
        ("mindformers-r1.8-qwen3_8b_lora-1npu-user-extract.txt", 7, {"step": 7, "loss": 14.734194}),
        ("mindrlhf-2024-llama2_7b_rm-8npu-info.log", 1, {"step": 2, "lr": 8e-08, "step_time_ms": 68580.279}),
        ("mindspeed-llm-fsdp2-2026.log", 3, {"step": 3}),
        ("mindspore-models-inceptionv3-losstime.log", 2, {"step": 2502, "step_time_ms": 128.631}),
        ("mindspore2.10-cpu-lossmonitor-timemonitor.log", 8, {"step": 24, "step_time_ms": 250.732}),
        ("mindyolo-2024-8npu-overflow.log", 4, {"step": 400, "step_time_ms": 660.74}),
    ],
)
def test_real_logs(shared_dumps, name, count, last):
    records = read_log_file(os.path.join(shared_dumps, "training-logs", name))
    assert len(records) == count
    assert {key: records[-1].get(key) for key in last} == last


def test_a_packed_log_is_read_and_a_damaged_one_is_an_error(tmp_path):
    whole = gzip.compress(b"step 1/25, loss: 2.5\n")
    assert read_log_file(write(tmp_path / "a.log.gz", whole)) == [{"step": 1, "loss": 2.5}]
    for content in (whole[:-9], b"no gzip"):
        with pytest.raises(OSError):
            read_log_file(write(tmp_path / "a.log.gz", content))
