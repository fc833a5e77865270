"""`Steps` and the layer recorder under PyTorch itself, on CPU, where it is installed (it is too large for the others)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from stepscope_agent import align
from stepscope_agent.logs import read_records_file
from stepscope_agent.torch import Steps

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch_double  # noqa: E402
import torch_network  # noqa: E402
from test_watch import Agent  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
STAND_IN = {"transposed": 1}, {"qkv_order": (1, 0, 2)}, {"epsilon": 1e-1}, {"not_loaded": 2}
FIRST = "layers.1.attention.wo", "layers.0.attention.qkv", "layers.0.attention_norm", "layers.2.attention_norm"


def records(folder, rank=0):
    return read_records_file(os.path.join(str(folder), "stepscope_steps_rank_%d.jsonl" % rank))


def train(steps, count):
    """A real loop with clipping and a schedule; what each step gave, as Python numbers."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    inputs, targets = torch.randn(32, 8), torch.randn(32, 1)
    told = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        rate = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        steps.step(loss=loss, global_norm=norm, lr=rate)
        told.append((loss.item(), norm.item(), rate))
    return told


def test_a_training_tells_loss_norm_and_rate_of_its_steps(tmp_path):
    with Steps(str(tmp_path), run="r", done=100, first_step=103, loss_every=1, min_free_bytes=0) as steps:
        told = train(steps, 12)
    rows = records(tmp_path)
    assert [row["step"] for row in rows] == list(range(101, 113))
    assert [(row["loss"], row["global_norm"], row["lr"]) for row in rows] == told
    assert len({row["loss"] for row in rows}) == 12


def test_without_an_npu_no_window_is_recorded_and_the_reason_is_told(tmp_path, caplog):
    with Steps(str(tmp_path), first_step=3, steps=2, min_free_bytes=0) as steps:
        train(steps, 6)
    assert "only it profiles an NPU" in caplog.text
    assert not [name for name in os.listdir(str(tmp_path)) if name.startswith("step_")]


def test_metadata_and_series_reach_a_server(tmp_path, server):
    with Steps(str(tmp_path / "profiles"), run="real torch", loss_every=1) as steps:
        told = train(steps, 5)
    Agent(tmp_path / "profiles", server, run=None).look()
    assert [row["loss"] for row in server.state.steps["callback"].values()] == [loss for loss, _, _ in told]
    assert server.state.runs["real-torch"]["meta"]["torch_version"] == str(torch.__version__)


PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from stepscope_agent.torch import Steps

if __name__ == "__main__":
    folder, rank, store, context = sys.argv[1:]
    torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=int(rank), world_size=2)
    data = TensorDataset(torch.arange(24.0))
    with Steps(folder, run="job", loss_every=1, min_free_bytes=0) as steps:
        for (batch,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context):
            loss = batch.mean() * (1 + int(rank))
            torch.distributed.all_reduce(loss)
            steps.step(loss=loss)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_ranks_of_a_process_group_write_each_their_own_while_workers_load_data(tmp_path, context):
    (tmp_path / "job.py").write_text(PROGRAM)
    path = os.pathsep.join([os.path.dirname(os.path.dirname(sys.modules["stepscope_agent"].__file__)), HERE])
    known = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    given = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "out")]
    ranks = [
        subprocess.Popen(given + [str(rank), str(tmp_path / "store"), context], env=dict(known, PYTHONPATH=path))
        for rank in range(2)
    ]
    assert [process.wait(300) for process in ranks] == [0, 0]
    means = [4.0 * place + 1.5 for place in range(6)]  # of 4 numbers in a row
    for rank in range(2):
        assert [row["loss"] for row in records(tmp_path / "out", rank)] == [3 * mean for mean in means]
    with open(str(tmp_path / "out" / "stepscope_job.json")) as stream:
        assert json.load(stream)["world_size"] == 2


def compared(tmp_path, **faults):
    """PyTorch's layers against the stand-in of NumPy: two implementations of one network."""
    ours, theirs = str(tmp_path / "ours.json"), str(tmp_path / "theirs.json")
    torch_network.record(ours, **faults)
    torch_double.record(theirs)
    return align.align(align.read_recording(ours), align.read_recording(theirs))


def test_the_same_weights_agree_in_every_layer(tmp_path):
    evidence = compared(tmp_path)
    assert (evidence["differing"], evidence["first"]) == (0, None)
    assert evidence["compared"] == torch_double.LAYERS * 7 + 2
    assert max(row["relative_error"] for row in evidence["layers"]) > 0


@pytest.mark.parametrize(("fault", "first"), list(zip(STAND_IN, FIRST)))
def test_the_first_layer_of_a_mistake_is_named(tmp_path, fault, first):
    assert compared(tmp_path, **fault)["first"] == first


def test_bfloat16_layers_are_recorded_and_the_model_is_left_as_it_was(tmp_path):
    network = torch_network.network().to(torch.bfloat16).train()
    network.embedding = network.embedding.to(torch.bfloat16)
    path = str(tmp_path / "half.json")
    torch_network.record_torch(network, (torch_network.TOKENS,), path)
    assert network.training and not network._forward_hooks
    torch_double.record(str(tmp_path / "full.json"))
    evidence = align.align(align.read_recording(path), align.read_recording(str(tmp_path / "full.json")))
    assert evidence["compared"] == torch_double.LAYERS * 7 + 2
    assert 1e-4 < max(row["relative_error"] for row in evidence["layers"]) < 0.1
