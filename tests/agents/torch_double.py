"""A transformer of NumPy whose layers can be hooked as PyTorch's can: a source framework where torch is not installed.

`faults` are the mistakes of a migration: `transposed` (layer whose attention output weight is), `qkv_order`, `epsilon` of the
norms, `not_loaded` (layer that keeps its initial weights).
"""

from __future__ import annotations

import contextlib
import sys
import types

import numpy as np
from stepscope_agent.layers import record_torch

HIDDEN, HEADS, LAYERS, VOCAB = 32, 4, 3, 64


class Tensor:
    """What the recorder asks of a torch.Tensor."""

    def __init__(self, values):
        self.values = np.asarray(values, np.float32)
        self.shape, self.dtype = self.values.shape, "torch.float32"

    def detach(self):
        return self

    float = cpu = detach

    def reshape(self, *shape):
        return Tensor(self.values.reshape(*shape))

    def numpy(self):
        return self.values


class Module:
    def __init__(self):
        self.hooks, self.training = [], True

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, value in vars(self).items():
            children = enumerate(value) if isinstance(value, list) else [(None, value)]
            for number, child in children:
                if isinstance(child, Module):
                    inner = name if number is None else "%s.%d" % (name, number)
                    yield from child.named_modules(prefix + "." + inner if prefix else inner)

    def register_forward_hook(self, hook):
        self.hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def __call__(self, *inputs):
        output = self.forward(*inputs)
        for hook in self.hooks:
            hook(self, inputs, output)
        return output

    def train(self, mode):
        self.training = mode

    def eval(self):
        self.train(False)


class Dense(Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x):
        return Tensor(x.values @ self.weight.T + self.bias)


class Norm(Module):
    def __init__(self, gamma, beta, epsilon):
        super().__init__()
        self.gamma, self.beta, self.epsilon = gamma, beta, epsilon

    def forward(self, x):
        centred = x.values - x.values.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon)
        return Tensor(centred / deviation * self.gamma + self.beta)


class Attention(Module):
    def __init__(self, qkv, wo):
        super().__init__()
        self.qkv, self.wo = qkv, wo

    def forward(self, x):
        length = x.shape[0]
        q, k, v = np.split(self.qkv(x).values, 3, -1)
        q, k, v = (part.reshape(length, HEADS, -1).transpose(1, 0, 2) for part in (q, k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(length, dtype=bool), scores, np.float32(-1e9))
        share = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (share / share.sum(-1, keepdims=True)) @ v
        return self.wo(Tensor(mixed.transpose(1, 0, 2).reshape(length, HIDDEN)))


class Layer(Module):
    def __init__(self, attention_norm, attention, ffn_norm, feed_forward):
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.ffn_norm, self.feed_forward = ffn_norm, feed_forward

    def forward(self, x):
        x = Tensor(x.values + self.attention(self.attention_norm(x)).values)
        return Tensor(x.values + self.feed_forward(self.ffn_norm(x)).values)


class Network(Module):
    def __init__(self, embedding, layers, head):
        super().__init__()
        self.embedding, self.layers, self.head = embedding, layers, head

    def forward(self, tokens):
        x = Tensor(self.embedding[tokens])
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def weights(seed=3):
    """By name, as a checkpoint holds them."""
    generator = np.random.default_rng(seed)

    def some(*shape):
        return (generator.standard_normal(shape) * 0.2).astype(np.float32)

    told = {"embedding": some(VOCAB, HIDDEN), "head.weight": some(VOCAB, HIDDEN), "head.bias": some(VOCAB)}
    for number in range(LAYERS):
        for norm in ("attention_norm", "ffn_norm"):
            told["layers.%d.%s.gamma" % (number, norm)] = 1 + some(HIDDEN)
            told["layers.%d.%s.beta" % (number, norm)] = some(HIDDEN)
        for name, wide in (("attention.qkv", 3 * HIDDEN), ("attention.wo", HIDDEN), ("feed_forward", HIDDEN)):
            told["layers.%d.%s.weight" % (number, name)] = some(wide, HIDDEN)
            told["layers.%d.%s.bias" % (number, name)] = some(wide)
    return told


def migrated(transposed=None, qkv_order=(0, 1, 2), not_loaded=None):
    """The weights as a migration with this mistake loads them."""
    told, fresh = weights(), weights(seed=4)
    if transposed is not None:
        name = "layers.%d.attention.wo.weight" % transposed
        told[name] = np.ascontiguousarray(told[name].T)
    for name in told:
        if ".qkv." in name:
            told[name] = np.concatenate([np.split(told[name], 3)[place] for place in qkv_order])
        if not_loaded is not None and name.startswith("layers.%d." % not_loaded):
            told[name] = fresh[name]
    return told


def network(epsilon=1e-5, **faults):
    told = migrated(**faults)

    def dense(name):
        return Dense(told[name + ".weight"], told[name + ".bias"])

    def norm(name):
        return Norm(told[name + ".gamma"], told[name + ".beta"], epsilon)

    layers = []
    for prefix in ("layers.%d." % number for number in range(LAYERS)):
        attention = Attention(dense(prefix + "attention.qkv"), dense(prefix + "attention.wo"))
        parts = norm(prefix + "attention_norm"), attention, norm(prefix + "ffn_norm"), dense(prefix + "feed_forward")
        layers.append(Layer(*parts))
    return Network(told["embedding"], layers, dense("head"))


def record(path, tensors=False, length=16, **faults):
    """Recorded as if torch were here."""
    known = {
        "is_tensor": lambda value: isinstance(value, Tensor),
        "no_grad": contextlib.nullcontext,
        "__version__": "0",
    }
    before = sys.modules.get("torch")
    sys.modules["torch"] = types.SimpleNamespace(**known)
    try:
        tokens = np.arange(length) * 7 % VOCAB
        return record_torch(network(**faults), (tokens,), path, tensors)
    finally:
        if before is None:
            del sys.modules["torch"]
        else:
            sys.modules["torch"] = before
