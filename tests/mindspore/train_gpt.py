"""Trains a tiny GPT on CPU under the callback: python train_gpt.py OPTIONS.json. Run by test_callback.py."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, Model
from stepscope_agent.mindspore import StepscopeCallback

HIDDEN, HEADS, LAYERS, VOCAB, LENGTH, BATCH = 32, 2, 2, 64, 16, 2


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Dense(HIDDEN, HIDDEN) for _ in range(4))
        self.softmax = nn.Softmax()
        self.mask = ms.Tensor(np.triu(np.full((LENGTH, LENGTH), -1e4, np.float32), 1))

    def split(self, x):
        return ops.transpose(ops.reshape(x, (BATCH, LENGTH, HEADS, HIDDEN // HEADS)), (0, 2, 1, 3))

    def construct(self, x):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * 0.25 + self.mask
        mixed = ops.transpose(ops.matmul(self.softmax(scores), v), (0, 2, 1, 3))
        return self.wo(ops.reshape(mixed, (BATCH, LENGTH, HIDDEN)))


class DecoderLayer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm((HIDDEN,)), nn.LayerNorm((HIDDEN,))
        self.attention = Attention()
        self.feed_forward = nn.SequentialCell(nn.Dense(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Dense(4 * HIDDEN, HIDDEN))

    def construct(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class GPT(nn.Cell):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.CellList([DecoderLayer() for _ in range(LAYERS)])
        self.lm_head = nn.Dense(HIDDEN, VOCAB)

    def construct(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return ops.reshape(self.lm_head(x), (-1, VOCAB))


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.entropy = nn.CrossEntropyLoss()

    def construct(self, logits, labels):
        return self.entropy(logits, ops.reshape(labels, (-1,)))


class Watcher(Callback):
    """Notes what training itself saw, for the test to compare with."""

    def __init__(self, stop):
        super().__init__()
        self.losses, self.stop, self.ends = {}, stop, []

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        if self.stop and params.cur_step_num % 5 == 0 and os.path.exists(self.stop):
            run_context.request_stop()
        self.losses[params.cur_step_num] = float(params.net_outputs.asnumpy())
        self.ends.append(time.perf_counter())


def rows(count):
    generator = np.random.default_rng(7)
    for _ in range(count * BATCH):
        tokens = generator.integers(0, VOCAB, LENGTH + 1).astype(np.int32)
        yield tokens[:-1], tokens[1:]


def main():
    with open(sys.argv[1]) as stream:
        options = json.load(stream)
    logging.basicConfig(stream=sys.stderr)
    ms.set_seed(1)
    ms.set_context(mode=getattr(ms, options["mode"]))
    ms.set_device("CPU")
    data = ds.GeneratorDataset(lambda: rows(options["steps"]), ["tokens", "labels"], shuffle=False).batch(BATCH)
    network = GPT()
    model = Model(network, Loss(), nn.AdamWeightDecay(network.trainable_params(), options.get("rate", 1e-3)))
    watcher = Watcher(options.get("stop"))
    callbacks = [StepscopeCallback(options["output"], **options["callback"])] if options["callback"] else []
    began = time.time()
    model.train(1, data, callbacks=callbacks + [watcher], dataset_sink_mode=options.get("sink", False))
    parameters = sum(int(np.prod(one.shape)) for one in network.trainable_params())
    gaps = sorted(after - before for before, after in zip(watcher.ends[50:-1], watcher.ends[51:], strict=True))
    step_ms = gaps[len(gaps) // 2] * 1e3 if gaps else None
    told = {"losses": watcher.losses, "seconds": time.time() - began, "parameters": parameters}
    told["step_ms"] = step_ms  # median, the first 50 steps left out
    with open(options["result"], "w") as stream:
        json.dump(told, stream)


main()
