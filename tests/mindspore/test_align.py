"""Layer outputs of MindSpore against a source framework with the same weights, and with the mistakes of a migration.

The source framework is PyTorch where STEPSCOPE_TORCH_PYTHON names a Python that has it, else the stand-in of NumPy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [
    os.path.join(os.path.dirname(os.path.dirname(HERE)), "agents"),
    os.path.join(os.path.dirname(HERE), "agents"),
]

import torch_double as source  # noqa: E402
from stepscope_agent import align  # noqa: E402
from stepscope_agent.layers import record_mindspore  # noqa: E402

HIDDEN, HEADS, LENGTH = source.HIDDEN, source.HEADS, 16
TOKENS = (np.arange(LENGTH) * 7 % source.VOCAB).astype(np.int32)
FAULTS = [
    ({"transposed": 1}, "layers.1.attention.wo"),
    ({"qkv_order": (1, 0, 2)}, "layers.0.attention.qkv"),
    ({"epsilon": 1e-1}, "layers.0.attention_norm"),
    ({"not_loaded": 2}, "layers.2.attention_norm"),
]


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv, self.wo = nn.Dense(HIDDEN, 3 * HIDDEN), nn.Dense(HIDDEN, HIDDEN)
        self.mask = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))

    def construct(self, x):
        parts = ops.transpose(ops.reshape(self.qkv(x), (LENGTH, 3, HEADS, HIDDEN // HEADS)), (1, 2, 0, 3))
        q, k, v = parts[0], parts[1], parts[2]
        scores = ops.matmul(q, ops.transpose(k, (0, 2, 1))) / float(np.sqrt(HIDDEN // HEADS)) + self.mask
        mixed = ops.transpose(ops.matmul(ops.softmax(scores, -1), v), (1, 0, 2))
        return self.wo(ops.reshape(mixed, (LENGTH, HIDDEN)))


class Layer(nn.Cell):
    def __init__(self, epsilon):
        super().__init__()
        self.attention_norm, self.ffn_norm = (nn.LayerNorm((HIDDEN,), epsilon=epsilon) for _ in range(2))
        self.attention, self.feed_forward = Attention(), nn.Dense(HIDDEN, HIDDEN)

    def construct(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Network(nn.Cell):
    def __init__(self, epsilon=1e-5):
        super().__init__()
        self.embedding = Parameter(Tensor(np.zeros((source.VOCAB, HIDDEN), np.float32)))
        self.layers = nn.CellList([Layer(epsilon) for _ in range(source.LAYERS)])
        self.head = nn.Dense(HIDDEN, source.VOCAB)
        self.dropout = nn.Dropout(p=0.5)

    def construct(self, tokens):
        x = self.dropout(ops.gather(self.embedding, tokens, 0))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def network(epsilon=1e-5, **faults):
    built, told = Network(epsilon), source.migrated(**faults)
    for name, parameter in built.parameters_and_names():
        parameter.set_data(Tensor(told[name]))
    return built


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("source") / "torch.json")
    python = os.environ.get("STEPSCOPE_TORCH_PYTHON")
    if python:
        subprocess.run(
            [python, os.path.join(os.path.dirname(HERE), "agents", "torch_network.py"), path], check=True, timeout=300
        )
    else:
        source.record(path, length=LENGTH)
    return align.read_recording(path)


def record(tmp_path, mode="PYNATIVE_MODE", **faults):
    path = str(tmp_path / "mindspore.json")
    mindspore.set_context(mode=getattr(mindspore, mode))
    built = network(**faults).set_train(True)
    record_mindspore(built, (Tensor(TOKENS),), path)
    assert mindspore.get_context("mode") == getattr(mindspore, mode)
    assert built.training
    return align.read_recording(path)


@pytest.mark.parametrize("mode", ["GRAPH_MODE", "PYNATIVE_MODE"])
def test_a_migration_without_mistakes_agrees_in_every_layer(tmp_path, theirs, mode):
    evidence = align.align(record(tmp_path, mode), theirs)
    assert (evidence["differing"], evidence["first"]) == (0, None)
    assert evidence["compared"] == source.LAYERS * 7 + 2  # the dropout is MindSpore's alone
    assert evidence["frameworks"] == ["mindspore", "torch"]
    assert max(row["relative_error"] for row in evidence["layers"]) > 0  # two implementations, not one copied


@pytest.mark.parametrize(("fault", "first"), FAULTS)
def test_the_first_layer_of_a_mistake_is_named(tmp_path, theirs, fault, first):
    evidence = align.align(record(tmp_path, **fault), theirs)
    assert evidence["first"] == first


def test_the_recording_tells_statistics_of_each_output(tmp_path):
    rows = {row["name"]: row for row in record(tmp_path).layers}
    norm = source.network().layers[0].attention_norm
    values = norm(source.Tensor(source.weights()["embedding"][TOKENS])).values.astype(np.float64)
    row = rows["layers.0.attention_norm"]
    assert (row["kind"], row["shape"], row["dtype"]) == ("LayerNorm", [LENGTH, HIDDEN], "float32")
    told = [row[name] for name in ("mean", "std", "min", "max", "norm")]
    assert told == pytest.approx(
        [values.mean(), values.std(), values.min(), values.max(), np.sqrt((values**2).sum())], rel=1e-4, abs=1e-5
    )


def test_whole_tensors_are_kept_when_asked_for(tmp_path):
    path = str(tmp_path / "whole.json")
    count = record_mindspore(network(), (Tensor(TOKENS),), path, tensors=True)
    with open(path) as stream:
        rows = json.load(stream)["layers"]
    assert len(rows) == count == len(os.listdir(path + ".tensors"))
    logits = np.fromfile(os.path.join(path + ".tensors", rows[-1]["file"]), np.float32)
    assert logits.shape == (LENGTH * source.VOCAB,)
