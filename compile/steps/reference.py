"""Step 7, reference: the texts to verify with, and the original model's answers to them, in float32 without padding.

Input: the source model, the lengths of the build. Output: `reference.npz`, see `answers`.
Cache key: the model's hashes, the rows, versions, this code; for each length by itself, so that another length added
computes only its own. A warm build loads neither torch nor the model. Check: every answer is a number.

Number of rows. A static runtime pads every row to its length, so a short row costs as much as a full one. Each length
gets rows for about 8,192 tokens, but at least 16 and at most 128 rows: on two cores MiniLM computes 8,192 tokens in a
second. If a row has one label (classifiers, rerankers), the shortest length gets up to 1,000 rows, because a share of
99.9 % means nothing over fewer; weights and precision are the same for all lengths. Above 512 MB of weights these
numbers are halved.

Choice of rows. First the four that reveal mistakes best: full, one token more than the next shorter length takes, half,
the shortest real text; then lengths spread over those that this runtime serves, a third of them full. Rerankers get
pairs of texts, other models with token types in every fourth row.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Importance, OutputTensor
from arlo.compile.cache import Cache, Entry, code_version, key_of, tool_versions
from arlo.compile.layers import NumpyLayers
from arlo.compile.original import answer_of, load_original
from arlo.compile.pooling import pool_numpy
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.signals.graph import CONFIDENCE, IMPORTANCE
from arlo.compile.steps.export import PICTURE
from arlo.compile.steps.resolve import SourceModel
from arlo.compile.steps.resolve_onnx import ANSWER_SPAN
from arlo.compile.texts import Texts
from arlo.compile.verify.answers import (
    FILE_NAME,
    Answered,
    Row,
    kept_positions,
    kept_whole,
    load,
    pad,
    save,
    takes_types,
)
from arlo.errors import CompileError

Inputs = Mapping[str, NDArray[np.int64]]

_LOGITS = ("logits", *ANSWER_SPAN)
_TOKENS = 8192  # for each length, counted as padded
_MIN_ROWS, _MAX_ROWS = 16, 128
_LONG = 512  # above, fewer rows: attention costs the square of the length
_LABEL_ROWS, _LABEL_TOKENS = 1000, 65_536  # for the shortest length of models that give one label a row
_LARGE_BYTES = 512 << 20
_DEEP_ROWS = 4  # the rows of each length that keep their secondary token-level answers
_BATCH_TOKENS = 4096  # that the original computes at a time
_NO_SHARES = 0.1  # an attention that sums to 1 by that much more or less is none
_OF_PAIRS = ("reranker", "question-answering")
_SHORTEST = 3  # tokens of the shortest text: one word between two special tokens


def reference_step(
    cache: Cache,
    model: SourceModel,
    outputs: Sequence[OutputTensor],
    texts: Texts,
    lengths: Sequence[int],
    *,
    importance: Importance | None = None,
) -> Entry:
    """Entry with `reference.npz` for runtimes of these maximum lengths, ascending.

    importance: the sums of that output, if there is one. It is computed from the attention of the torch model; an ONNX
    file exposes none, so only its laws are checked (arlo.compile.signals.laws).
    meta: `levels` (length, as text -> key of its rows and answers), `rows`, `tokens`. CompileError when the original
    model does not load or does not answer in numbers.
    """
    if _onnx(model):
        outputs = [output for output in outputs if output.name != IMPORTANCE]
    original = _Original(model, outputs, importance)
    identity = {
        "original": model.hashes,
        "task": model.task,
        "inputs": [[tensor.name, tensor.datatype, tensor.role] for tensor in model.inputs],
        "pooling": [list(model.pooling), [layer.kind for layer in model.layers], model.normalize],
        "outputs": [[output.name, output.token_level, list(output.dims)] for output in outputs],
        "activation": model.label_activation,
        "importance": importance and dataclasses.asdict(importance),
        "texts": texts.key(),
        "tools": tool_versions("tokenizers", *(("onnxruntime",) if _onnx(model) else ("torch", "transformers"))),
        "code": code_version(
            "steps/reference", "verify/answers", "texts", "original", "pooling", "layers", "signals/graph"
        ),
    }
    entries = {}
    for below, length in itertools.pairwise((0, *lengths)):
        plan = plan_rows(model, outputs, below, length)
        entries[length] = cache.step(
            "answers",
            identity | {"level": length, "plan": plan},
            functools.partial(_answer, original, texts, outputs, plan, length=length),
        )

    def merge(folder: Path) -> dict[str, Any]:
        if len(entries) == 1:
            shutil.copyfile(entries[lengths[0]].folder / FILE_NAME, folder / FILE_NAME)
        else:
            rows = [row for entry in entries.values() for row in load(entry.folder / FILE_NAME, outputs)]
            save(folder / FILE_NAME, rows, outputs)
        return {
            "levels": {str(length): entry.key for length, entry in entries.items()},
            "rows": sum(entry.meta["rows"] for entry in entries.values()),
            "tokens": sum(entry.meta["tokens"] for entry in entries.values()),
        }

    parts = {"answers": [entry.files for entry in entries.values()], "key": key_of(identity), "lengths": list(lengths)}
    return cache.step("reference", parts, merge)


def plan_rows(
    model: SourceModel, outputs: Sequence[OutputTensor], below: int, length: int
) -> list[tuple[int, bool, int]]:
    """(tokens, whether it is a pair, sample number) of each row for one runtime length.

    below: the next shorter length, 0 when there is none: texts up to it are sent elsewhere.
    """
    budget, fewest = _TOKENS, _MIN_ROWS
    if model.weight_bytes > _LARGE_BYTES:
        budget, fewest = budget // 2, fewest // 2
    fewest = max(_DEEP_ROWS, fewest * _LONG // max(length, _LONG))
    count = min(max(budget // length, fewest), _MAX_ROWS)
    if below == 0 and model.task != "embedding" and not outputs[0].token_level:
        count = max(count, min(_LABEL_ROWS, _LABEL_TOKENS * budget // _TOKENS // length))
    shortest = min(_SHORTEST, length)
    first = max(shortest, min(below + 1, length))
    # Lengths repeat, so that rows of one length can be computed together, which needs no padding.
    spread = [first + (length - first) * step // 5 for step in range(5)]
    cycle = [length, spread[4], spread[2], length, spread[3], spread[1], length, spread[0]]
    tokens = [length, first, max(shortest, length // 2), shortest]
    tokens = (tokens + [cycle[index % len(cycle)] for index in range(count)])[:count]
    types = any(map(takes_types, model.inputs))
    return [
        (tokens, model.task in _OF_PAIRS or (types and index % 4 == 2), index) for index, tokens in enumerate(tokens)
    ]


def _answer(
    original: _Original,
    texts: Texts,
    outputs: Sequence[OutputTensor],
    plan: Sequence[tuple[int, bool, int]],
    folder: Path,
    *,
    length: int,
) -> dict[str, Any]:
    rows = []
    for tokens, paired, sample in plan:
        ids, types = texts.pair(tokens, sample=sample) if paired else (texts.ids(tokens, sample=sample), [0] * tokens)
        rows.append(Row(tuple(ids), tuple(types)))
    answers: list[dict[str, NDArray[np.float32]]] = [{} for _ in rows]
    batches = []
    for tokens in sorted(set(map(len, rows)), reverse=True):
        same = [index for index, row in enumerate(rows) if len(row) == tokens]
        step = max(1, _BATCH_TOKENS // tokens)
        batches += [same[start : start + step] for start in range(0, len(same), step)]
    for batch, found in zip(batches, original.answer([[rows[i] for i in batch] for batch in batches]), strict=True):
        for name, values in found.items():
            if not np.isfinite(values).all():
                raise CompileError(
                    f"reference: the original model gives {name} that is not a number for a text of "
                    f"{len(rows[batch[0]])} tokens: its weights are damaged, or it cannot read texts of this length"
                )
            for index, value in zip(batch, values, strict=True):
                answers[index][name] = value
    answered = []
    for index, row in enumerate(rows):
        deep, positions = index < _DEEP_ROWS, {}
        for number, output in enumerate(outputs):
            if kept_whole(number, output):
                continue
            if deep:
                positions[output.name] = kept_positions(len(row))
                answers[index][output.name] = answers[index][output.name][positions[output.name]]
            else:
                del answers[index][output.name]
        answered.append(Answered(row, length, deep, answers[index], positions))
    save(folder / FILE_NAME, answered, outputs)
    return {"rows": len(rows), "tokens": sum(map(len, rows))}


def _onnx(model: SourceModel) -> Any:
    return getattr(model, "onnx", None)


def _confidence(logits: NDArray[np.float32], activation: str) -> NDArray[np.float32]:
    """The largest probability [rows, 1] by softmax or sigmoid of logits [rows, labels]."""
    exact = logits.astype(np.float64)
    if activation == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-exact.max(-1, keepdims=True))), np.float32)
    shares = np.exp(exact - exact.max(-1, keepdims=True))
    return np.asarray(shares.max(-1, keepdims=True) / shares.sum(-1, keepdims=True), np.float32)


class _Original:
    """The original model as users run it, loaded on first use.

    torch: with the attention that transformers chooses, not the exported one, for more independence. Only if importance
    is requested it is the plain one, because no other exposes its weights.
    An ONNX file: with ONNX Runtime on the CPU, untouched by any step of the build.
    """

    def __init__(self, model: SourceModel, outputs: Sequence[OutputTensor], importance: Importance | None) -> None:
        self._model = model
        self._outputs = outputs
        self._importance = importance
        self._loaded: Any = None

    def answer(self, batches: Sequence[Sequence[Row]]) -> list[dict[str, NDArray[np.float32]]]:
        """Answers [rows, *dims] or [rows, tokens, *dims] by output for each batch, whose rows have one length.

        Each core computes its own batches: threads that share an operation would wait for each other at its end, which
        takes ten times as long on a busy machine.
        """
        # A file for one length answers no row without its padding, and how much there is may be part of its answer.
        inputs = [pad(self._model.inputs, rows, self._model.fixed_tokens or len(rows[0])) for rows in batches]
        cores = len(os.sched_getaffinity(0))
        found = self._run_onnx(inputs, cores) if _onnx(self._model) else self._run_torch(inputs, cores)
        if any(output.name == CONFIDENCE for output in self._outputs):
            activation = self._model.label_activation
            found = [each | {CONFIDENCE: _confidence(each["logits"], activation)} for each in found]
        missing = [output.name for output in self._outputs if output.name not in found[0]]
        if missing:
            raise CompileError(f"reference: the original model does not give {', '.join(missing)}, the export does")
        return [  # the padding of a file for one length is cut off
            {
                output.name: each[output.name][:, : len(rows[0])] if output.token_level else each[output.name]
                for output in self._outputs
            }
            for each, rows in zip(found, batches, strict=True)
        ]

    def _run_torch(self, batches: Sequence[Inputs], cores: int) -> list[dict[str, NDArray[np.float32]]]:
        with known_noise_silenced():
            import torch

            if self._loaded is None:
                self._loaded = load_original(self._model, attention="eager" if self._importance else None)
            asked = {"output_attentions": True} if self._importance else {}

            def run(inputs: Inputs) -> dict[str, NDArray[np.float32]]:
                with torch.inference_mode():
                    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
                    answer = answer_of(self._loaded, **tensors, **asked)
                found = self._received(answer) if self._importance else {}
                if self._model.task != "embedding":
                    return found | {name: answer[name].float().numpy() for name in _LOGITS if name in answer}
                hidden = answer.last_hidden_state.float().numpy()
                if self._model.row_length is not None:
                    return found | {PICTURE: hidden[:, 0]}
                return found | {"last_hidden_state": hidden, "sentence_embedding": self._pool(hidden)}

            before = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                with ThreadPoolExecutor(cores) as pool:
                    return list(pool.map(run, batches))
            finally:
                torch.set_num_threads(before)

    def _run_onnx(self, batches: Sequence[Inputs], cores: int) -> list[dict[str, NDArray[np.float32]]]:
        from arlo.templates.onnxruntime.session import open_session

        if self._loaded is None:
            try:
                self._loaded = open_session(_onnx(self._model), 1)
            except Exception as error:  # ONNX Runtime raises its own kinds
                raise CompileError(f"reference: ONNX Runtime does not open the original file ({error})") from error
        whole = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}  # other tensors keep their type
        known = {tensor.name: whole.get(tensor.type) for tensor in self._loaded.get_inputs()}
        names = [tensor.name for tensor in self._loaded.get_outputs()]

        def run(inputs: Inputs) -> dict[str, NDArray[np.float32]]:
            answers = self._loaded.run(
                None,
                {name: array.astype(known[name] or array.dtype) for name, array in inputs.items() if name in known},
            )
            found = {name: np.asarray(array, np.float32) for name, array in zip(names, answers, strict=True)}
            hidden = next((found[output.name] for output in self._outputs if output.name in found), None)
            if self._model.pooling and "sentence_embedding" not in found and hidden is not None:
                found["sentence_embedding"] = self._pool(hidden)  # the build added it to the graph
            return found

        with ThreadPoolExecutor(cores) as pool:
            return list(pool.map(run, batches))

    def _received(self, answer: Any) -> dict[str, NDArray[np.float32]]:
        """Importance [rows, tokens] of rows without padding: attention summed over layers, heads and queries."""
        assert self._importance is not None
        layers = [layer for layer in answer.get("attentions") or () if layer is not None]
        if len(layers) != self._importance.of_layers:
            raise CompileError(
                f"reference: the original model shows the attention of {len(layers)} layers and its graph that of "
                f"{self._importance.of_layers}: build without --importance"
            )
        total = np.zeros(layers[0].shape[::3], np.float64)
        for layer in layers[-self._importance.layers :]:
            shares = layer.double()
            if (shares.sum(-1) - 1).abs().max() > _NO_SHARES:  # SqueezeBERT returns the scores before the softmax
                shares = shares.softmax(-1)
            total += shares.sum((1, 2)).numpy()
        return {IMPORTANCE: total.astype(np.float32)}

    def _pool(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        layers = NumpyLayers(self._model.layers, normalize=self._model.normalize)
        return np.stack([layers(pool_numpy(row, self._model.pooling)) for row in hidden]).astype(np.float32)
