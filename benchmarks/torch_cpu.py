"""The torch engine beside ONNX Runtime on this CPU, one thread, the demo model: padded and packed, full and mixed rows.

Contenders alternate within a round; a figure is the median over the rounds of the median CPU time of a run, so that
other work on the machine disturbs little.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile import CompileOptions, compile_model
from arlo.compile.engines.torch import export_folder
from arlo.compile.steps.resolve import DEMO_MODEL, demo_model_path
from arlo.traces.lengths import parse_length_spec
from benchmarks import harness

LENGTHS = (16, 32, 64, 128, 192, 256, 384, 512)
ROWS = (1, 8)
MIXED = 32  # rows of a batch whose lengths are those of tweets
OUTPUT = ("sentence_embedding",)
Inputs = dict[str, NDArray[np.int64]]


def sessions(folder: Path) -> dict[str, Any]:
    """ONNX Runtime's dynamic graph, and the torch engine padded and packed; each one thread."""
    from arlo.templates.onnxruntime.session import Session as OrtSession
    from arlo.templates.torch.session import Session as TorchSession

    options = CompileOptions(
        source=Path(DEMO_MODEL),
        out=folder / "onnx",
        lengths=(LENGTHS[-1],),
        beyond_limit=True,  # speed alone is measured
        static=False,
        max_batch=max(ROWS),
    )
    (runtime,) = compile_model(options).runtimes
    model = export_folder(demo_model_path(), folder / "torch")
    return {
        "onnxruntime": OrtSession(folder / "onnx" / runtime.name / "1" / "model.onnx", threads=1),
        "static": TorchSession(model, kinds=("static",), max_rows=MIXED),
        "packed": TorchSession(model, kinds=("packed",), max_rows=MIXED),
    }


def inputs_of(lengths: NDArray[np.int64], rng: np.random.Generator) -> Inputs:
    """A batch of rows of these lengths, padded to the longest."""
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    ids = rng.integers(1000, 30_000, mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def cpu_ms(run: Callable[[], Any], seconds: float) -> float:
    """The median CPU time of a run."""
    run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e3


def measure(contenders: Mapping[str, Any], inputs: Inputs, *, rounds: int, seconds: float) -> dict[str, float]:
    """Milliseconds of each contender, which take turns."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, session in contenders.items():
            found[name].append(cpu_ms(functools.partial(session.run, OUTPUT, inputs), seconds))
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure and round (default: 0.3)")
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        contenders = sessions(Path(folder))
        cells = [(f"{rows} x {length}", np.full(rows, length)) for length in LENGTHS for rows in ROWS]
        tweets = parse_length_spec("tweets").draw(MIXED, rng)
        cells.append((f"{MIXED} rows, tweets", np.asarray(tweets, np.int64)))
        found = []
        print("| rows x tokens | ONNX Runtime, ms | torch, padded | packed | padded / ONNX Runtime | packed / padded |")
        print("|---|---|---|---|---|---|")
        for title, lengths in cells:
            ms = measure(contenders, inputs_of(lengths, rng), rounds=options.rounds, seconds=options.seconds)
            ort, static, packed = ms["onnxruntime"], ms["static"], ms["packed"]
            found.append({"cell": title, **{name: round(value, 3) for name, value in ms.items()}})
            print(
                f"| {title} | {ort:.2f} | {static:.2f} | {packed:.2f} | {static / ort:.2f} | {packed / static:.2f} |",
                flush=True,
            )
    harness.save(
        "torch_cpu",
        "python -m benchmarks.torch_cpu",
        {"cells": found, "rounds": options.rounds, "seconds": options.seconds},
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
