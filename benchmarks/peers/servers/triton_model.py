"""Text to vectors in a plain Triton: tokenizers and ONNX Runtime in the Python backend, one run for a whole batch.

What Triton's dynamic batcher puts together is padded to its longest text.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb
from tokenizers import Tokenizer


class TritonPythonModel:
    """TEXT BYTES [rows, 1] -> VECTOR FP32 [rows, dims], mean over the tokens, length 1."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer and the graph that the parameters name."""
        given = {key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()}
        self.tokenizer = Tokenizer.from_file(given["tokenizer"])
        self.tokenizer.enable_truncation(int(given["max_tokens"]))
        self.tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(given["threads"])
        self.session = onnxruntime.InferenceSession(given["graph"], options, providers=["CPUExecutionProvider"])
        self.names = [each.name for each in self.session.get_inputs()]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests of one batch."""
        arrays = [pb.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1) for request in requests]
        encoded = self.tokenizer.encode_batch([text.decode() for array in arrays for text in array])
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        given = {
            "input_ids": np.array([each.ids for each in encoded], np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([each.type_ids for each in encoded], np.int64),
        }
        (hidden,) = self.session.run(["last_hidden_state"], {name: given[name] for name in self.names})
        vectors = np.einsum("rtd,rt->rd", hidden, mask.astype(np.float32)) / mask.sum(axis=1, keepdims=True)
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        parts = np.split(vectors, np.cumsum([len(array) for array in arrays])[:-1])
        return [pb.InferenceResponse(output_tensors=[pb.Tensor("VECTOR", part)]) for part in parts]
