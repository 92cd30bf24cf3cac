"""Answers and times of a variant's ONNX file in ONNX Runtime on the CPU; and heads for a body."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import InputTensor
from arlo.catalog.tasks import NO_CLASS, TASK
from arlo.compile.adapt.variant import Head
from arlo.compile.original import load_original
from arlo.compile.pooling import pool_torch
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import SourceModel
from arlo.compile.verify.answers import Row, pad
from arlo.errors import CompileError

BATCH = 8
DIFFERS = 1e-3  # of the largest answer: a merge went another way, which rounding decides where tokens are equally alike
LEAST_AGREEMENT = 0.99
ROUNDS = 7  # turns of measured latencies


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """The file compared with the torch module that it was made from."""

    rows: int
    max_abs_diff: float
    differing: float  # share of the rows whose answer differs by more than rounding
    agreement: float  # share of the rows with the same label


def encode(tokenizer: Path, texts: Sequence[str], length: int) -> list[tuple[int, ...]]:
    """Token ids of each text, cut to `length`."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(tokenizer))
    loaded.no_padding()
    side = loaded.truncation["direction"] if loaded.truncation else "right"
    loaded.enable_truncation(max_length=length, direction=side)
    return [tuple(each.ids) for each in loaded.encode_batch(list(texts))]


def padded(inputs: Sequence[InputTensor], rows: Sequence[tuple[int, ...]], width: int) -> dict[str, NDArray[np.int64]]:
    """Rows of ids as the model's inputs [rows, width]; with several tasks, a row's ids pick its task."""
    return pad(inputs, [Row(ids, (0,) * len(ids)) for ids in rows], width)


def open_session(path: Path, threads: int) -> Any:
    """An ONNX Runtime session on the CPU."""
    from arlo.templates.onnxruntime.session import open_session as opened

    return opened(path, threads)


def batches(
    inputs: Sequence[InputTensor], rows: Sequence[tuple[int, ...]], length: int, task: int | None = None
) -> list[dict[str, NDArray[np.int64]]]:
    """The inputs of all rows, padded to `length`. task: of all rows, if there are several tasks; None: a row's ids pick
    its task."""
    found = []
    for at in range(0, len(rows), BATCH):
        given = padded(inputs, rows[at : at + BATCH], length)
        if task is not None:
            given[TASK] = np.full_like(given[TASK], task)
        found.append(given)
    return found


def agreed(said: NDArray[np.float32], wanted: NDArray[np.float32]) -> Compared:
    """Compare the answers of a file and its torch module, [rows, classes]. CompileError when they disagree."""
    real = wanted > NO_CLASS / 2
    if ((said > NO_CLASS / 2) != real).any():
        raise CompileError("adapt: the exported variant has classes where the torch model has none")
    said, wanted = np.where(real, said, 0), np.where(real, wanted, 0)
    off = np.abs(said - wanted).max(axis=1)
    same = np.where(real, said, NO_CLASS).argmax(1) == np.where(real, wanted, NO_CLASS).argmax(1)
    found = Compared(
        rows=len(said),
        max_abs_diff=float(off.max()),
        differing=float((off > DIFFERS * np.abs(wanted).max()).mean()),
        agreement=float(same.mean()),
    )
    if found.agreement < LEAST_AGREEMENT:
        raise CompileError(
            f"adapt: the exported variant agrees with the torch model on {found.agreement:.1%} of {len(said)} rows "
            f"only (largest difference {found.max_abs_diff:.1e}): the exporter made another model of it"
        )
    return found


def full_rows(
    inputs: Sequence[InputTensor], texts: Sequence[tuple[int, ...]], length: int, count: int
) -> dict[str, NDArray[np.int64]]:
    """The inputs of so many rows of exactly `length` tokens: ids of texts, repeated until a row is full."""
    return padded(inputs, [tuple(np.resize(texts[i % len(texts)], length).tolist()) for i in range(count)], length)


def timed(
    sessions: Mapping[str, Any],
    rows: Sequence[int],
    batch: Callable[[str, int], Mapping[str, Any]],
    *,
    threads: int = 1,
) -> dict[str, dict[int, float]]:
    """ms by variant and number of rows, once each, one after another.

    batch: the inputs of so many rows for a variant. Times are CPU time, which excludes other work on the machine,
    divided by `threads`, which are kept busy.
    """
    taken: dict[str, dict[int, float]] = {name: {} for name in sessions}
    for name, session in sessions.items():
        for count in rows:
            given = batch(name, count)
            begun = time.process_time()
            session.run(None, given)
            taken[name][count] = 1000 * (time.process_time() - begun) / threads
    return taken


def embed(model: SourceModel, rows: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
    """The unchanged model's embedding of each row, [rows, width]."""
    with known_noise_silenced():
        import torch

        original = load_original(model)
    found = np.zeros((len(rows), 0), np.float32)
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    with torch.inference_mode():
        for at in range(0, len(order), 4 * BATCH):
            batch = order[at : at + 4 * BATCH]
            width = len(rows[batch[-1]])
            given = {k: torch.from_numpy(v) for k, v in padded(model.inputs, [rows[i] for i in batch], width).items()}
            hidden = original(**given).last_hidden_state
            pooled = pool_torch(hidden, given["attention_mask"], model.pooling, normalize=model.normalize).numpy()
            if not found.shape[1]:
                found = np.zeros((len(rows), pooled.shape[1]), np.float32)
            found[batch] = pooled
    return found


def fit_head(
    embedded: NDArray[np.float32], classes: NDArray[np.int64], labels: Sequence[str], *, decay: float = 1e-4
) -> Head:
    """Multinomial logistic regression on embeddings [rows, width], by L-BFGS; `decay` weighs the squared weights."""
    import torch

    mean, scale = embedded.mean(0), embedded.std(0) + 1e-6
    x = torch.from_numpy((embedded - mean) / scale)
    y = torch.from_numpy(classes)
    linear = torch.nn.Linear(x.shape[1], len(labels))
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=150, line_search_fn="strong_wolfe")

    def loss() -> Any:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(linear(x), y) + decay * linear.weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]  # torch leaves LBFGS untyped
    weight = linear.weight.detach().numpy() / scale
    return Head(
        tuple(labels), weight.astype(np.float32), (linear.bias.detach().numpy() - weight @ mean).astype(np.float32)
    )
