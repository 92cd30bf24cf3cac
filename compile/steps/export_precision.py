"""The original model cast to its target precision, before it is exported.

Weights and activations are cast in torch, so that the graph states the type of every computation: the engines take it
as it is (TensorRT as a strongly typed network). Parts that half precision would spoil stay in float32: the
normalisation layers, which sum squares, and tables such as the frequencies of rotary positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arlo.compile.engines.interface import Precision

if TYPE_CHECKING:
    import torch


def prepare_model(model: Any, precision: Precision) -> None:
    """Make a loaded transformers model ready for the export, in place; it answers in `precision` afterwards."""
    _whole_norms(model)
    _cast(model, precision)


def _whole_norms(model: Any) -> None:
    """Replace layer norms that a family writes out step by step by torch's, which is one node of the graph.

    DeBERTa's is the same function, but ONNX Runtime fuses its steps in a way that half precision breaks.
    """
    import torch

    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if type(module).__name__ == "DebertaLayerNorm":
                norm = torch.nn.LayerNorm(module.weight.shape, eps=module.variance_epsilon)
                norm.weight, norm.bias = module.weight, module.bias
                setattr(parent, name, norm.train(module.training))


def _cast(model: Any, precision: Precision) -> None:
    """Cast weights and activations in place.

    Normalisation layers keep float32 weights; their inputs are cast up and their outputs cast down.
    """
    import torch

    if precision == "fp32":
        return
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    norms = [module for module in model.modules() if _is_norm(module)]
    kept = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
    # Buffers are left alone: transformers keeps the frequencies of rotary positions there, and casts what it makes of
    # them; in half precision the positions beyond some hundreds would coincide.
    for parameter in model.parameters():
        if id(parameter) not in kept and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for norm in norms:
        norm.register_forward_pre_hook(_up)
        norm.register_forward_hook(lambda _module, _inputs, output: output.to(dtype))


def _is_norm(module: torch.nn.Module) -> bool:
    """Whether it is LayerNorm, RMSNorm or the like. Only leaves count: some families name a whole block similarly."""
    return type(module).__name__.endswith("Norm") and next(module.children(), None) is None


def _up(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.float() for tensor in inputs)
