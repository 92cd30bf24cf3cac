"""Pooling of token embeddings to one sentence embedding: in torch and in ONNX for exports, in NumPy as the reference.

The first two compute the pooling of sentence-transformers, with masks. The NumPy form works on one row without padding,
so it needs no mask, and it shares no code with them: `verify` compares it with the exported graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx_ir
    import torch


def pool_torch(
    hidden: torch.Tensor, mask: torch.Tensor, modes: Sequence[str], *, normalize: bool = False
) -> torch.Tensor:
    """Pool `hidden` [rows, tokens, dim] under `mask` [rows, tokens] to [rows, dim * len(modes)]."""
    import torch

    weights = mask.unsqueeze(-1).to(hidden.dtype)
    positions = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    pooled = []
    for mode in modes:
        if mode in ("mean", "mean_sqrt_len_tokens"):
            count = weights.sum(1).clamp(min=1e-9)
            pooled.append((hidden * weights).sum(1) / (count if mode == "mean" else count.sqrt()))
        elif mode == "max":
            pooled.append(hidden.masked_fill(weights == 0, float("-inf")).max(1).values)
        elif mode == "weightedmean":
            # Weights count from the first real token, so that padding on the left changes nothing.
            skipped = mask.to(torch.int32).argmax(1, keepdim=True)
            weighted = weights * (positions.unsqueeze(0) - skipped).unsqueeze(-1).to(hidden.dtype)
            pooled.append((hidden * weighted).sum(1) / weighted.sum(1).clamp(min=1e-9))
        else:  # cls: the first real token; lasttoken: the last one
            marks = mask.to(torch.int32) if mode == "cls" else (mask * positions).to(torch.int32)
            index = marks.argmax(1).reshape(-1, 1, 1).expand(-1, 1, hidden.shape[2])
            pooled.append(hidden.gather(1, index).squeeze(1))
    result = torch.cat(pooled, dim=-1) if len(pooled) > 1 else pooled[0]
    return torch.nn.functional.normalize(result, p=2.0, dim=1) if normalize else result


def pool_graph(
    tape: onnx_ir.tape.Tape, hidden: onnx_ir.Value, mask: onnx_ir.Value, modes: Sequence[str], *, normalize: bool
) -> onnx_ir.Value:
    """`pool_torch` as nodes of opset 18 on `tape`; the mask is INT64."""
    import onnx_ir

    def op(kind: str, *inputs: onnx_ir.Value, **attributes: Any) -> onnx_ir.Value:
        return tape.op(kind, inputs, attributes)

    def constant(value: float | list[int]) -> onnx_ir.Value:
        array = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        return op("Constant", value=onnx_ir.tensor(array))

    def total(values: onnx_ir.Value, weights: onnx_ir.Value) -> tuple[onnx_ir.Value, onnx_ir.Value]:
        weights = op("Unsqueeze", weights, constant([-1]))
        sums = [op("ReduceSum", each, constant([1]), keepdims=0) for each in (op("Mul", values, weights), weights)]
        return sums[0], op("Max", sums[1], constant(1e-9))

    def token(scores: onnx_ir.Value) -> onnx_ir.Value:
        return op("GatherND", hidden, op("ArgMax", scores, axis=1), batch_dims=1)

    flags = op("Cast", mask, to=int(onnx_ir.DataType.FLOAT))  # [rows, tokens]
    ranks = op("CumSum", op("Add", op("Mul", flags, constant(0.0)), constant(1.0)), constant([1]))
    pooled = []
    for mode in modes:
        if mode == "mean":
            pooled.append(op("Div", *total(hidden, flags)))
        elif mode == "mean_sqrt_len_tokens":
            summed, count = total(hidden, flags)
            pooled.append(op("Div", summed, op("Sqrt", count)))
        elif mode == "weightedmean":
            skipped = op("Cast", op("ArgMax", flags, axis=1), to=int(onnx_ir.DataType.FLOAT))
            pooled.append(op("Div", *total(hidden, op("Mul", flags, op("Sub", ranks, skipped)))))
        elif mode == "max":
            there = op("Cast", op("Unsqueeze", flags, constant([-1])), to=int(onnx_ir.DataType.BOOL))
            masked = op("Where", there, hidden, constant(float("-inf")))
            pooled.append(op("ReduceMax", masked, constant([1]), keepdims=0))
        else:
            pooled.append(token(flags if mode == "cls" else op("Mul", flags, ranks)))
    result = op("Concat", *pooled, axis=-1) if len(pooled) > 1 else pooled[0]
    return normalized_graph(tape, result) if normalize else result


def normalized_graph(tape: onnx_ir.tape.Tape, x: onnx_ir.Value) -> onnx_ir.Value:
    """`x` [rows, dim] divided by the lengths of its rows."""
    import onnx_ir

    axis, least = (onnx_ir.tensor(np.array(value)) for value in ([1], np.float32(1e-12)))
    norm = tape.op("ReduceL2", [x, tape.op("Constant", [], {"value": axis})], {"keepdims": 1})
    return tape.op("Div", [x, tape.op("Max", [norm, tape.op("Constant", [], {"value": least})])])


def pool_numpy(hidden: NDArray[np.float32], modes: Sequence[str], *, normalize: bool = False) -> NDArray[np.float64]:
    """Pool one row `hidden` [tokens, dim], which has no padding, to [dim * len(modes)] in double precision."""
    row = hidden.astype(np.float64)
    tokens = len(row)
    ranks = np.arange(1, tokens + 1)[:, None]
    by_mode = {
        "cls": lambda: row[0],
        "lasttoken": lambda: row[-1],
        "max": lambda: row.max(0),
        "mean": lambda: row.mean(0),
        "mean_sqrt_len_tokens": lambda: row.sum(0) / np.sqrt(tokens),
        "weightedmean": lambda: (row * ranks).sum(0) / ranks.sum(),
    }
    result: NDArray[np.float64] = np.concatenate([by_mode[mode]() for mode in modes])
    if normalize:
        result /= max(float(np.linalg.norm(result)), 1e-12)
    return result
