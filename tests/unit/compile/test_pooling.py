"""All forms of the pooling against sentence-transformers, and against each other."""

from __future__ import annotations

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from arlo.compile.pooling import pool_graph, pool_numpy, pool_torch
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.folder import POOLING_MODES

with known_noise_silenced():
    import torch
    from sentence_transformers.models import Pooling

ROWS = [(0, 7), (0, 3), (2, 7), (0, 1), (6, 7)]  # first and last real token: padding on either side


def by_graph(
    hidden: torch.Tensor, mask: torch.Tensor, modes: tuple[str, ...], *, normalize: bool
) -> NDArray[np.float32]:
    inputs = [
        onnx_ir.Value(name=name, type=onnx_ir.TensorType(kind), shape=onnx_ir.Shape(shape))
        for name, kind, shape in (
            ("hidden", onnx_ir.DataType.FLOAT, ["rows", "tokens", 5]),
            ("mask", onnx_ir.DataType.INT64, ["rows", "tokens"]),
        )
    ]
    graph = onnx_ir.Graph(inputs, [], nodes=[], opset_imports={"": 18}, name="pooling")
    pooled = pool_graph(onnx_ir.tape.Tape(graph), *inputs, modes, normalize=normalize)
    pooled.dtype = onnx_ir.DataType.FLOAT
    graph.outputs.append(pooled)
    proto = onnx_ir.serde.serialize_model(onnx_ir.Model(graph, ir_version=10))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {"hidden": hidden.numpy(), "mask": mask.numpy()})
    found: NDArray[np.float32] = answer
    return found


@pytest.mark.parametrize("modes", [*[(mode,) for mode in POOLING_MODES], ("cls", "mean"), POOLING_MODES])
def test_pooling_is_that_of_sentence_transformers(modes: tuple[str, ...]) -> None:
    hidden = torch.from_numpy(np.random.default_rng(3).normal(size=(len(ROWS), 7, 5)).astype(np.float32))
    mask = torch.zeros(len(ROWS), 7, dtype=torch.int64)
    for row, (first, last) in enumerate(ROWS):
        mask[row, first:last] = 1
    theirs = Pooling(5, pooling_mode=modes)({"token_embeddings": hidden, "attention_mask": mask})["sentence_embedding"]
    ours = pool_torch(hidden, mask, modes, normalize=False)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
    unit = torch.nn.functional.normalize(theirs, dim=1)
    np.testing.assert_allclose(pool_torch(hidden, mask, modes, normalize=True).numpy(), unit.numpy(), atol=1e-6)
    np.testing.assert_allclose(by_graph(hidden, mask, modes, normalize=False), theirs.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_graph(hidden, mask, modes, normalize=True), unit.numpy(), atol=1e-6)
    for row, (first, last) in enumerate(ROWS):
        bare = hidden[row, first:last].numpy()
        np.testing.assert_allclose(pool_numpy(bare, modes, normalize=False), theirs[row].numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(pool_numpy(bare, modes, normalize=True), unit[row].numpy(), atol=1e-6)
