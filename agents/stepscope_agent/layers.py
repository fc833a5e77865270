"""Records what each layer of a network gives for a fixed input, in MindSpore and in PyTorch, to compare the two.

    from stepscope_agent.layers import record_mindspore, record_torch
    record_mindspore(network, (tokens,), "/data/align/mindspore.json")  # on one side
    record_torch(model, (tokens,), "/data/align/torch.json")  # on the other

then `stepscope-agent align /data/align/mindspore.json /data/align/torch.json`. Both run the forward pass alone, with
dropout off. Of each output the shape, the data type, mean, standard deviation, extremes, norm and values at fixed
places are kept; with `tensors=True` all values too.

The frameworks are the caller's: nothing is imported here but MindSpore, when it is the one.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import sys
from array import array
from typing import Any, Callable, Iterator, Mapping, Sequence, Tuple, Union

from stepscope_agent.manifest import write_json

SCHEMA = 1
SAMPLE = 4096
"""Values kept of each output, spread evenly: enough to tell tensors of equal statistics apart."""
Inputs = Union[Sequence[Any], Mapping[str, Any]]
_Named = Tuple[str, Any]


def record_mindspore(network: Any, inputs: Inputs, path: str, tensors: bool = False) -> int:
    """Runs `network` (a Cell) once on `inputs` and writes the recording to `path`; how many outputs it holds.

    Hooks need PyNative mode: the mode is switched for this one pass and set back. `inputs` are the arguments, or
    keyword arguments, of `construct`.
    """
    import mindspore  # type: ignore[import-not-found]

    def flat(tensor: Any) -> Any:
        return tensor.astype(mindspore.float32).asnumpy().reshape(-1)

    recorder = _Recorder("mindspore", mindspore.__version__, flat, lambda value: isinstance(value, mindspore.Tensor))
    cells = [(name, cell) for name, cell in network.cells_and_names() if name]
    mode, training = mindspore.get_context("mode"), bool(getattr(network, "training", False))
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    network.set_train(False)
    try:
        with recorder.hooked(cells):
            recorder.run(network, inputs)
    finally:
        network.set_train(training)
        mindspore.set_context(mode=mode)
    return recorder.write(path, tensors)


def record_torch(model: Any, inputs: Inputs, path: str, tensors: bool = False) -> int:
    """Runs `model` (a Module) once on `inputs` and writes the recording to `path`; how many outputs it holds."""
    torch = sys.modules["torch"]  # the caller's model is made of it
    is_tensor: Callable[[Any], bool] = torch.is_tensor

    def flat(tensor: Any) -> Any:
        return tensor.detach().float().cpu().reshape(-1).numpy()

    recorder = _Recorder("torch", str(torch.__version__), flat, is_tensor)
    modules = [(name, module) for name, module in model.named_modules() if name]
    training = bool(model.training)
    model.eval()
    try:
        with torch.no_grad(), recorder.hooked(modules):
            recorder.run(model, inputs)
    finally:
        model.train(training)
    return recorder.write(path, tensors)


class _Recorder:
    """What came out of each layer, in the order in which they ended."""

    def __init__(self, framework: str, version: str, flat: Callable[[Any], Any], is_tensor: Callable[[Any], bool]):
        self.framework, self.version, self.flat, self.is_tensor = framework, version, flat, is_tensor
        self.rows: list[dict[str, Any]] = []
        self.values: list[Any] = []
        self._calls: dict[str, int] = {}
        self.keeps_values = False

    @contextlib.contextmanager
    def hooked(self, layers: Sequence[_Named]) -> Iterator[None]:
        handles = [layer.register_forward_hook(self._hook(name)) for name, layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def run(self, network: Any, inputs: Inputs) -> None:
        self._note("output", network, network(**inputs) if isinstance(inputs, Mapping) else network(*inputs))

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(layer: Any, inputs: Any, output: Any) -> None:
            self._note(name, layer, output)

        return hook

    def _note(self, name: str, layer: Any, output: Any) -> None:
        """A layer that runs more than once, as with shared weights, gets a number from the second time on."""
        self._calls[name] = call = self._calls.get(name, 0) + 1
        name += "#%d" % call if call > 1 else ""
        for place, tensor in enumerate(self._tensors(output)):
            values = self.flat(tensor)
            row: dict[str, Any] = {"name": name + ("[%d]" % place if place else ""), "kind": type(layer).__name__}
            row.update(shape=[int(one) for one in tensor.shape], dtype=str(tensor.dtype).lower().split(".")[-1])
            row.update(_statistics(values))
            self.rows.append(row)
            self.values.append(values)

    def _tensors(self, output: Any) -> list[Any]:
        if isinstance(output, Mapping):
            output = list(output.values())
        parts = output if isinstance(output, (tuple, list)) else [output]
        return [part for part in parts if self.is_tensor(part) and "bool" not in str(part.dtype).lower()]

    def write(self, path: str, tensors: bool) -> int:
        """The recording; with `tensors` also a folder beside it with each output as raw float32."""
        recording = {"schema": SCHEMA, "framework": self.framework, "framework_version": self.version}
        if tensors:
            folder = path + ".tensors"
            os.makedirs(folder, exist_ok=True)
            for number, (row, values) in enumerate(zip(self.rows, self.values)):
                row["file"] = "%05d.f32" % number
                with open(os.path.join(folder, row["file"]), "wb") as stream:
                    stream.write(values.tobytes())
        write_json(path, dict(recording, layers=self.rows))
        return len(self.rows)


def _statistics(values: Any) -> dict[str, Any]:
    """`values`: a flat float32 array of NumPy. What is not finite is null and counted."""
    count = int(values.size)
    if not count:
        return {"count": 0, "sample": ""}
    numbers = {
        "mean": float(values.mean(dtype="float64")),
        "std": float(values.std(dtype="float64")),
        "min": float(values.min()),
        "max": float(values.max()),
        "norm": math.sqrt(float((values * values).sum(dtype="float64"))),
    }
    sample = array("f", [values[place] for place in places(count)])
    told: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {"count": count, **told, "sample": base64.b64encode(sample.tobytes()).decode("ascii")}


def places(count: int) -> list[int]:
    """Which of `count` values are kept: all when they are few, else `SAMPLE` of them, spread evenly."""
    return list(range(count)) if count <= SAMPLE else [place * count // SAMPLE for place in range(SAMPLE)]
