"""Repositories whose emulated engines say again what a real model once said, in the time of a latency profile.

The second token of a row names its record. Gateway, simulator and offline tool can so be compared row by row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Manifest, OutputTensor
from arlo.workers.emulated.repository import EmulatedRuntime, write_runtimes

RECORD_PLACE = 1  # of the token whose id is the number of the record
_MAGIC = b"ARLOREC1"


def write_records(path: Path, logits: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> None:
    """`logits` [records, labels]; `importance` [records, tokens], 0 beyond a row's tokens; None: there is none."""
    tokens = 0 if importance is None else importance.shape[1]
    with path.open("wb") as file:
        file.write(_MAGIC + struct.pack("<iii", *logits.shape, tokens))
        file.write(np.ascontiguousarray(logits, "<f4").tobytes())
        if importance is not None:
            file.write(np.ascontiguousarray(importance, "<f4").tobytes())


def write_replayed_repository(
    path: Path,
    *,
    model: str,
    runtimes: Sequence[EmulatedRuntime],
    logits: NDArray[np.float32],
    importance: NDArray[np.float32] | None = None,
) -> Manifest:
    """A repository of these runtimes with the outputs `logits` [rows, labels] and, where it is given, `importance`
    [rows, tokens], which is on request."""
    path.mkdir(parents=True, exist_ok=True)
    records = (path / f"{model}.records.bin").absolute()
    write_records(records, logits, importance)
    outputs = [OutputTensor(name="logits", datatype="FP32", token_level=False, dims=(logits.shape[1],))]
    if importance is not None:
        outputs.append(OutputTensor(name="importance", datatype="FP32", token_level=True, dims=(), on_request=True))
    return write_runtimes(path, model=model, runtimes=runtimes, outputs=outputs, records=records)
