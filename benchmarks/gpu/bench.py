"""What the stages share: the time that is left, results kept after every cell, timing, CUDA graphs, models and rows."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from arlo.templates.torch.encoder import Architecture, Encoder, random_encoder
from arlo.templates.torch.session import HEADROOM, SHORT
from benchmarks.gpu import SHAPES, Cell

Lengths = NDArray[np.int64]  # tokens of rows

SEED, VOCABULARY, POSITIONS = 7, 30522, 512
EMBEDDING = "sentence_embedding"
REST_S = 0.3  # that a cell needs at least


class Bench:
    """One stage: its cells, the file `results` that holds them, and until when it may measure.

    `found` is what the file holds: `cells` or a dictionary with them. `stretch` makes cells as much longer.
    """

    def __init__(self, results: Path, seconds: float, *, dry: bool, logs: Path, stretch: int = 1) -> None:
        self.results, self.dry, self.logs = results, dry, logs
        self.cells: list[Cell] = []
        self.found: Any = self.cells
        self.cuda = torch.cuda.is_available() and not dry
        self.device, self.precision = ("cuda", "fp16") if self.cuda else ("cpu", "fp32")
        self._stretch, self._end_s = stretch, time.monotonic() + seconds
        self._longest_s: dict[str, float] = {}
        results.parent.mkdir(parents=True, exist_ok=True)
        if dry:
            torch.set_num_threads(1)

    @property
    def left_s(self) -> float:
        """Seconds until the stage must end."""
        return self._end_s - time.monotonic()

    def room(self, kind: str) -> bool:
        """Whether a cell as long as the longest of this kind fits into the time that is left."""
        return self.left_s > REST_S + 1.2 * self._longest_s.get(kind, 0.0)

    def save(self) -> None:
        """Write the file as a whole; of a list, one line for each cell."""
        text = json.dumps(self.found, indent=1)
        if isinstance(self.found, list):
            text = "[\n" + ",\n".join(json.dumps(cell) for cell in self.found) + "\n]"
        new = self.results.with_suffix(".json.new")
        new.write_text(text + "\n")
        new.replace(self.results)

    def cell(self, kind: str, about: Cell, measure: Callable[[Cell], None]) -> Cell | None:
        """Append a cell, measure it, and write the file; None: there is no time. A failure is the cell's `error`."""
        if not self.room(kind):
            return None
        found, began_s = dict(about), time.monotonic()
        self.cells.append(found)
        try:
            with torch.inference_mode():
                measure(found)
        except BaseException as error:
            found["error"] = f"{type(error).__name__}: {error}"[:300]
            if not isinstance(error, Exception):  # the stage's time is over
                raise
        finally:
            self.save()
        took_s = time.monotonic() - began_s
        self._longest_s[kind] = max(took_s, self._longest_s.get(kind, 0.0))
        time.sleep((self._stretch - 1) * took_s)
        return found

    def sync(self) -> None:
        """Wait until the GPU has nothing to do."""
        if self.cuda:
            torch.cuda.synchronize()

    def time_ms(self, run: Callable[[], object], *, budget_s: float = 0.1, clock: bool = False) -> float:
        """Median milliseconds of 5 to 200 single runs, after warming up: on a GPU by events, or by the clock."""
        for _ in range(1 if self.dry else 3):
            run()
        self.sync()
        times: list[float] = []
        start_s = time.monotonic()
        while len(times) < 5 or (len(times) < 200 and time.monotonic() - start_s < budget_s):
            before_s = time.perf_counter()
            if self.cuda and not clock:
                before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                before.record()
                run()
                after.record()
                after.synchronize()
                times.append(before.elapsed_time(after))
            else:
                run()
                times.append((time.perf_counter() - before_s) * 1e3)
        return round(statistics.median(times), 4)

    def graph(self, run: Callable[[], object]) -> Callable[[], object]:
        """`run`, which has run before, recorded as one CUDA graph; on a CPU `run` itself."""
        if not self.cuda:
            return run
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            run()
        return recorded.replay

    def model(self, shape: str, *, compiled: bool | None = None) -> Encoder:
        """An encoder with drawn weights. compiled: by inductor for any shape (True) or for each shape (False)."""
        model = random_encoder(architecture(shape), seed=SEED, device=self.device, precision=self.precision)
        if compiled is not None:
            torch._dynamo.config.accumulated_recompile_limit = 4096
            model.compile_layers(dynamic=compiled)
        return model

    def recorded(self, program: Any, pool: Any = None) -> Any:
        """A program of the engine, as a CUDA graph where there is a GPU."""
        return program.record(pool or torch.cuda.graph_pool_handle()) if self.cuda else program


def packed_sizes(lengths: Lengths, tokens: int) -> tuple[int, int, int]:
    """Rows, tokens and longest row of the engine's smallest program of `tokens` tokens that takes these rows."""
    room = next((tokens // each for each in HEADROOM if tokens // each >= len(lengths)), len(lengths))
    return room, tokens, SHORT if lengths.max() <= SHORT else POSITIONS


def architecture(shape: str, *, seed: int | None = None, precision: str = "fp32") -> Architecture:
    """BERT of this shape."""
    layers, width, heads = SHAPES[shape]
    sizes = {"layers": layers, "width": width, "heads": heads, "intermediate": 4 * width, "types": 1}
    fields: dict[str, Any] = {"family": "bert", "pooling": ("mean",), **sizes}
    return Architecture(vocabulary=VOCABULARY, positions=POSITIONS, seed=seed, precision=precision, **fields)


def model_folder(folder: Path, shape: str, precision: str = "fp32") -> Path:
    """A model folder of the torch engine whose weights are drawn when it is opened."""
    folder.mkdir(parents=True, exist_ok=True)
    architecture(shape, seed=SEED, precision=precision).write(folder)
    return folder


def mixes(count: int, seed: int) -> dict[str, Lengths]:
    """Lengths of `count` rows of each mix: tweets (mean 31 tokens), passages of rag (290), and mix (80 % tweets)."""
    random = np.random.default_rng(seed)

    def tweets() -> Lengths:
        return np.clip(random.lognormal(3.25, 0.6, count), 3, 128).astype(np.int64)

    def rag() -> Lengths:
        return np.clip(random.normal(290, 90, count), 16, POSITIONS).astype(np.int64)

    return {"tweets": tweets(), "rag": rag(), "mix": np.where(random.random(count) < 0.8, tweets(), rag())}


def filled(lengths: Lengths, tokens: int) -> Lengths:
    """The first of these rows that fit into `tokens`, at least one (cut where it is longer)."""
    fit = int(np.searchsorted(np.cumsum(lengths), tokens, "right"))
    return np.minimum(lengths[: max(1, fit)], tokens)


def offsets_of(lengths: Lengths, most: int) -> NDArray[np.int32]:
    """int32 [most + 1]: the borders of these rows, filled up with the last one."""
    offsets = np.full(most + 1, int(lengths.sum()), np.int32)
    offsets[: len(lengths) + 1] = np.concatenate([[0], np.cumsum(lengths)])
    return offsets


def useful_tflops(shape: str, lengths: Sequence[int] | Lengths, ms: float) -> float:
    """Operations that rows of these lengths need, without padding, over the time."""
    arch = architecture(shape)
    tokens, squares = float(sum(lengths)), float(sum(n * n for n in lengths))
    mlp = (3 if arch.gated else 2) * 2 * arch.width * arch.intermediate
    flops = arch.layers * (tokens * (8 * arch.width**2 + mlp) + 4 * squares * arch.width)
    return round(flops / ms / 1e9, 1)


def power(what: str) -> float | None:
    """`TotalEnergyConsumption` in joules since the driver was loaded, or `PowerUsage` in watts now, by NVML."""
    with contextlib.suppress(Exception):  # there is no pynvml, or no such counter
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

        pynvml.nvmlInit()
        return float(getattr(pynvml, f"nvmlDeviceGet{what}")(pynvml.nvmlDeviceGetHandleByIndex(0))) / 1e3
    return None
