"""Model code for Triton: the stages of a pipeline of tensors, by the parameter `kind`. Runs inside Triton alone.

cut:  page (BYTES) -> count; of each part between bars a strip (BYTES, each letter twice), and its place
sum:  strip (rows, letters, 2 UINT8), place, page -> total, echo (BYTES: page#place#letters), logits of even or odd
best: label, score -> said (FP32: label and score)
size: page -> total (letters), echo (BYTES: page#size)
all:  total (rows, parts, 1 INT64), echo (BYTES: a line of each part) -> lines, sum, text (the lines again)
Pages that begin with ! make `cut` answer nonsense: see _cut.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """See the module."""

    def initialize(self, args: dict[str, str]) -> None:
        self._kind = json.loads(args["model_config"])["parameters"]["kind"]["string_value"]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [getattr(self, f"_{self._kind}")(request) for request in requests]

    def _cut(self, request: Any) -> Any:
        pages = [bytes(page) for page in _of(request, "page").reshape(-1)]
        parts = [[part for part in page.split(b"|") if part] for page in pages]
        counts = [len(each) for each in parts]
        strips = [bytes(letter for letter in part for _ in range(2)) for each in parts for part in each]
        places = np.asarray([place for each in parts for place in range(len(each))], np.int32)
        kind: Any = np.int32
        for page in pages:
            if page.startswith(b"!slow"):
                time.sleep(0.2)
            if page.startswith(b"!less"):  # strips without a number
                counts[0] -= 1
            if page.startswith(b"!minus"):
                counts[0] = -1
            if page.startswith(b"!type"):
                kind = np.float32
            if page.startswith(b"!odd"):  # half a step
                strips[0] += b"x"
            if page.startswith(b"!huge"):
                counts, strips = [1 << 15], [b"ab"] * (1 << 15)
                places = np.zeros(1 << 15, np.int32)
            if page.startswith(b"!fail"):
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("no such page"))
        return _answer(
            count=np.asarray(counts, kind).reshape(-1, 1),
            strips=np.asarray([*strips, b""], np.object_)[:-1].reshape(-1, 1),
            place=places.reshape(-1, 1),
            scores=np.asarray([[len(page), 3, np.nan if page else 0, 5] for page in pages], np.float32),
        )

    def _sum(self, request: Any) -> Any:
        strips = _of(request, "strip").astype(np.int64)
        pages, places = _of(request, "page").reshape(-1), _of(request, "place").reshape(-1)
        totals = strips.sum((1, 2))
        letters = (strips[:, :, 0] > 0).sum(1)
        echo = [b"%s#%d#%d" % (bytes(p), q, n) for p, q, n in zip(pages, places, letters, strict=True)]
        even = totals // 2 % 2 == 0
        return _answer(
            total=totals.reshape(-1, 1),
            echo=np.asarray([*echo, b""], np.object_)[:-1].reshape(-1, 1),
            logits=np.stack([even, ~even], 1).astype(np.float32) * 9,
        )

    def _best(self, request: Any) -> Any:
        label, score = _of(request, "label"), _of(request, "score")
        return _answer(said=np.concatenate([label, score], 1).astype(np.float32))

    def _size(self, request: Any) -> Any:
        pages = [bytes(page) for page in _of(request, "page").reshape(-1)]
        return _answer(
            total=np.asarray([len(page) for page in pages], np.int64).reshape(-1, 1),
            echo=np.asarray([*(page + b"#size" for page in pages), b""], np.object_)[:-1].reshape(-1, 1),
        )

    def _all(self, request: Any) -> Any:
        texts = _of(request, "echo").reshape(-1)
        return _answer(
            lines=np.asarray([bytes(text).count(b"\n") + 1 for text in texts], np.int32).reshape(-1, 1),
            sum=_of(request, "total").sum((1, 2)).reshape(-1, 1),
            text=np.asarray([*texts, b""], np.object_)[:-1].reshape(-1, 1),
        )


def _of(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def _answer(**outputs: Any) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
