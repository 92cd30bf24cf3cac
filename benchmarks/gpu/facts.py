"""Stage `facts`: what the card can do at most, and whether every kind of the torch engine answers what float64 does."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from arlo.templates.torch.encoder import random_encoder
from arlo.templates.torch.session import KINDS, Session
from benchmarks.gpu import Cell
from benchmarks.gpu.bench import EMBEDDING, SEED, Bench, architecture, model_folder, power

BOUNDS = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}  # norm of the difference over that of the reference
PACKAGES = ("torch", "triton", "transformers", "numpy", "onnxruntime", "onnxruntime-gpu", "arlo-serve")
SMI = "name,driver_version,power.draw,power.limit,clocks.sm,clocks.max.sm,clocks_throttle_reasons.active"
REQUESTS, ROWS, LONGEST = 3, 4, 128


def run(bench: Bench) -> None:
    """Write facts.json: versions and ceilings first, then a line for each kind and precision."""
    found: dict[str, Any] = {"device": bench.device, "date": time.strftime("%F %T"), "torch": torch.__version__}
    found |= {"python": platform.python_version(), "cores": os.cpu_count(), "versions": {}}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found["versions"][package] = importlib.metadata.version(package)
    if bench.cuda:
        found["idle_watts"] = power("PowerUsage")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            found["nvidia_smi"] = done.stdout.strip()
        card = torch.cuda.get_device_properties(0)
        found |= {"name": card.name, "sms": card.multi_processor_count, "cuda": torch.version.cuda}
        found["memory_gb"] = round(card.total_memory / 2**30, 1)
    bench.found = found
    bench.save()
    found |= {**ceilings(bench), "checks": bench.cells}
    bench.save()
    modes = [("fp32", False)] if bench.dry else [("fp16", False), ("fp16", True), ("bf16", True), ("fp32", True)]
    for (precision, compiled), kind in ((mode, kind) for mode in modes for kind in KINDS):
        about: Cell = {"kind": kind, "precision": precision, "compiled": compiled, "bound": BOUNDS[precision]}
        bench.cell("check", about, lambda cell: _check(bench, cell))


def ceilings(bench: Bench) -> dict[str, Any]:
    """Rates of a copy and of matrix products: squares, and the widest layer of BERT-base over 16,384 tokens."""
    size, budget_s = (2**20, 0.02) if bench.dry else (2**30, 0.2)
    dtype = torch.float16 if bench.cuda else torch.float32
    source = torch.empty(size, dtype=torch.int8, device=bench.device)
    target = torch.empty_like(source)
    copy_ms = bench.time_ms(lambda: target.copy_(source), budget_s=budget_s)
    rates: dict[str, float] = {}
    for m, k, n in [(256,) * 3] if bench.dry else [(4096,) * 3, (8192,) * 3, (16384,) * 3, (16384, 768, 3072)]:
        a, b = (torch.randn(shape, device=bench.device, dtype=dtype) for shape in ((m, k), (k, n)))
        ms = bench.time_ms(lambda a=a, b=b: a @ b, budget_s=budget_s)  # type: ignore[misc]
        rates[f"{m}x{k}x{n}"] = round(2 * m * k * n / ms / 1e9, 2)
    copy = round(2 * size / copy_ms / 1e9, 3)
    return {"copy_tb_s": copy, "matmul_tflops": max(rates.values()), "matmul_by_shape": rates}


def _check(bench: Bench, cell: Cell) -> None:
    """Ragged rows through one kind of a session, against float64. NaN is no answer."""
    shape = "tiny" if bench.dry else "bert-base-4"
    requests, reference = _reference(shape, bench.device)
    about = {"precision": cell["precision"], "kinds": (cell["kind"],), "compiled": cell["compiled"]}
    about |= {"lengths": (64, LONGEST), "max_rows": ROWS, "budget": ROWS * LONGEST}
    with tempfile.TemporaryDirectory() as folder:
        session = Session(model_folder(Path(folder), shape), device=bench.device, **about)
    masked = ({"input_ids": ids, "attention_mask": np.sign(ids)} for ids in requests)
    got = np.concatenate([session.run([EMBEDDING], tensors)[0] for tensors in masked])
    cell["note"] = session.note
    error = float(np.linalg.norm(got - reference) / np.linalg.norm(reference))
    cell |= {"error_norm": error if math.isfinite(error) else None, "passed": error <= cell["bound"]}


@functools.cache
def _reference(shape: str, device: str) -> tuple[list[NDArray[np.int64]], NDArray[np.float64]]:
    """Requests of ragged rows, ids padded with 0, and the answers of float64 to each row alone."""
    exact = random_encoder(architecture(shape), seed=SEED, device=device).double()
    random, requests, answers = np.random.default_rng(3), [], []
    for lengths in random.integers(1, LONGEST + 1, (REQUESTS, ROWS)):
        ids = random.integers(1000, 30000, (ROWS, int(lengths.max())))
        requests.append(np.where(np.arange(ids.shape[1]) < lengths[:, None], ids, 0))
        for row, length in zip(ids, lengths, strict=True):
            hidden = exact.padded(torch.from_numpy(row[None, :length]).to(device), None)
            answers.append(exact.answers_padded(hidden, None)[EMBEDDING].cpu().numpy())
    return requests, np.concatenate(answers)
