"""Layers of sentence-transformers after the pooling (Dense, LayerNorm, Normalize), in torch, in ONNX and in NumPy.

The first two are exported, the NumPy form is the reference, as in `pooling`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile.pooling import normalized_graph
from arlo.errors import CompileError

if TYPE_CHECKING:
    import onnx_ir

_LAYER_NORM_EPS = 1e-5  # the default of torch
Numbers = NDArray[np.float64]

_FUNCTIONS: dict[str, Callable[[Numbers], Numbers]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in x]),
    "normalize": lambda x: x / max(float(np.linalg.norm(x)), 1e-12),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """A layer and the file of its weights."""

    kind: str  # linear:IN:OUT, linear:IN:OUT:nobias, layernorm:SIZE, normalize or an activation
    weights: Path | None = None

    def load(self) -> dict[str, NDArray[np.float32]]:
        """`weight` and `bias`; empty for a layer without weights. torch is imported only if NumPy cannot read them."""
        if self.weights is None:
            return {}
        try:
            found = _arrays(self.weights)
        except Exception as error:  # safetensors, pickle and torch raise their own kinds
            raise CompileError(
                f"export: {self.weights} cannot be read ({error}): copy the model folder again"
            ) from error
        return {name.rpartition(".")[2]: array.astype(np.float32) for name, array in found.items()}


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if path.suffix == ".safetensors":
        import safetensors.numpy

        try:
            return safetensors.numpy.load_file(path)
        except (KeyError, TypeError):  # bfloat16
            import safetensors.torch

            return {name: tensor.float().numpy() for name, tensor in safetensors.torch.load_file(path).items()}
    import torch

    found = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.float().numpy() for name, tensor in found.items()}


def torch_layers(layers: Sequence[Layer], *, normalize: bool) -> Any:
    """A module from [rows, dim] to [rows, dim]. CompileError if the weights do not match the layers."""
    import torch

    from arlo.templates.torch.encoder import layer_of

    made = [layer_of(layer.kind) for layer in layers]
    for module, layer in zip(made, layers, strict=True):
        try:
            module.load_state_dict({name: torch.from_numpy(array) for name, array in layer.load().items()})
        except RuntimeError as error:
            raise CompileError(f"export: {layer.weights} does not hold {layer.kind} ({error})") from error
    return torch.nn.Sequential(*made, *([layer_of("normalize")] if normalize else [])).eval()


def graph_layers(
    tape: onnx_ir.tape.Tape, x: onnx_ir.Value, layers: Sequence[Layer], *, normalize: bool
) -> onnx_ir.Value:
    """The layers as nodes of opset 18 on `tape`."""
    import onnx_ir

    def constant(name: str, value: Any) -> onnx_ir.Value:
        return tape.initializer(onnx_ir.tensor(np.asarray(value, np.float32)), name)

    for number, layer in enumerate((*layers, *([Layer("normalize")] if normalize else []))):
        kind = layer.kind.partition(":")[0]
        weights = {name: constant(f"tail_{number}_{name}", array) for name, array in layer.load().items()}
        if kind == "normalize":
            x = normalized_graph(tape, x)
        elif kind == "linear":
            x = tape.op("Gemm", [x, *(weights[name] for name in ("weight", "bias") if name in weights)], {"transB": 1})
        elif kind == "layernorm":
            x = tape.op("LayerNormalization", [x, weights["weight"], weights["bias"]], {"epsilon": _LAYER_NORM_EPS})
        elif kind == "silu":
            x = tape.op("Mul", [x, tape.op("Sigmoid", [x])])
        elif kind == "gelu":
            scaled = tape.op("Erf", [tape.op("Mul", [x, constant(f"tail_{number}_scale", math.sqrt(0.5))])])
            half = tape.op("Mul", [x, constant(f"tail_{number}_half", 0.5)])
            x = tape.op("Mul", [half, tape.op("Add", [scaled, constant(f"tail_{number}_one", 1.0)])])
        else:
            x = tape.op({"relu": "Relu"}.get(kind, kind.title()), [x])
    return x


class NumpyLayers:
    """The layers in NumPy for one row [dim], in double precision."""

    def __init__(self, layers: Sequence[Layer], *, normalize: bool) -> None:
        self._steps = [self._step(layer) for layer in layers]
        if normalize:
            self._steps.append(_FUNCTIONS["normalize"])

    def __call__(self, row: Numbers) -> Numbers:
        for step in self._steps:
            row = step(row)
        return row

    @staticmethod
    def _step(layer: Layer) -> Callable[[Numbers], Numbers]:
        if layer.weights is None:
            return _FUNCTIONS[layer.kind]
        arrays = {name: array.astype(np.float64) for name, array in layer.load().items()}
        weight, bias = arrays["weight"], arrays.get("bias", 0.0)
        if layer.kind.startswith("linear"):
            return lambda row: weight @ row + bias
        return lambda row: (row - row.mean()) / np.sqrt(row.var() + _LAYER_NORM_EPS) * weight + bias
