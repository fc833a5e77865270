"""The transformer of torch_double.py out of PyTorch's own layers. `python torch_network.py FILE` records it."""

from __future__ import annotations

import os
import sys

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(HERE)), "agents"), HERE]

from stepscope_agent.layers import record_torch  # noqa: E402

import torch_double as source  # noqa: E402

HIDDEN, HEADS, LENGTH = source.HIDDEN, source.HEADS, 16
TOKENS = torch.arange(LENGTH) * 7 % source.VOCAB


class Attention(torch.nn.Module):
    def __init__(self, qkv, wo):
        super().__init__()
        self.qkv, self.wo = qkv, wo

    def forward(self, x):
        parts = [part.reshape(LENGTH, HEADS, -1).transpose(0, 1) for part in self.qkv(x).chunk(3, -1)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.wo(mixed.transpose(0, 1).reshape(LENGTH, HIDDEN))


class Layer(torch.nn.Module):
    def __init__(self, attention_norm, attention, ffn_norm, feed_forward):
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.ffn_norm, self.feed_forward = ffn_norm, feed_forward

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Network(torch.nn.Module):
    def __init__(self, embedding, layers, head):
        super().__init__()
        self.layers, self.head = torch.nn.ModuleList(layers), head
        self.register_buffer("embedding", embedding)

    def forward(self, tokens):
        x = self.embedding[tokens]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def network(epsilon=1e-5, **faults):
    """With the weights of the stand-in, or with what a migration made of them."""
    told = {name: torch.from_numpy(np.array(value)) for name, value in source.migrated(**faults).items()}

    def dense(name):
        weight, bias = told[name + ".weight"], told[name + ".bias"]
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        return layer

    def norm(name):
        layer = torch.nn.LayerNorm(HIDDEN, eps=epsilon)
        layer.load_state_dict({"weight": told[name + ".gamma"], "bias": told[name + ".beta"]})
        return layer

    layers = []
    for prefix in ("layers.%d." % number for number in range(source.LAYERS)):
        attention = Attention(dense(prefix + "attention.qkv"), dense(prefix + "attention.wo"))
        layers.append(
            Layer(norm(prefix + "attention_norm"), attention, norm(prefix + "ffn_norm"), dense(prefix + "feed_forward"))
        )
    return Network(told["embedding"], layers, dense("head"))


def record(path, tensors=False, **faults):
    return record_torch(network(**faults), (TOKENS,), path, tensors)


if __name__ == "__main__":
    record(sys.argv[1])
