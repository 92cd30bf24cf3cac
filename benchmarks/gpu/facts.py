"""Stage `facts`: what the card can do at most, and whether every kind of the torch engine answers what float64 does."""

from __future__ import annotations

import contextlib
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

from arlo.templates.torch.encoder import Encoder
from arlo.templates.torch.session import Session
from benchmarks.gpu.bench import EMBEDDING, SEED, Bench, Cell, Power, architecture, model_folder

FILE = "facts.json"
BOUNDS = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}  # norm of the difference over that of the reference
KINDS = ("static", "dynamic", "packed")
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
        found["idle_watts"] = Power().read("PowerUsage")
        found["nvidia_smi"] = _smi()
        card = torch.cuda.get_device_properties(0)
        found |= {"name": card.name, "sms": card.multi_processor_count, "cuda": torch.version.cuda}
        found["memory_gb"] = round(card.total_memory / 2**30, 1)
        bench.save(FILE, found)
    checks: list[Cell] = []
    found |= {**ceilings(bench), "checks": checks}
    bench.save(FILE, found)
    modes = [("fp32", False)] if bench.dry else [("fp16", False), ("fp16", True), ("bf16", True), ("fp32", True)]
    for (precision, compiled), kind in ((mode, kind) for mode in modes for kind in KINDS):
        if not bench.room("check"):
            break
        about: Cell = {"kind": kind, "precision": precision, "compiled": compiled, "bound": BOUNDS[precision]}
        bench.cell("check", checks, lambda: bench.save(FILE, found), about, lambda cell: _check(bench, cell))


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
    """Ragged rows through one kind of a session, against float64 row by row. NaN is no answer."""
    shape = "tiny" if bench.dry else "bert-base"
    with tempfile.TemporaryDirectory() as folder:
        session = Session(
            model_folder(Path(folder), shape),
            device=bench.device,
            precision=cell["precision"],
            kinds=(cell["kind"],),
            lengths=(64, LONGEST),
            max_rows=ROWS,
            budget=1024,
            compiled=cell["compiled"],
        )
    exact = Encoder.random(architecture(shape), seed=SEED, device=bench.device).double()
    random, got, wanted = np.random.default_rng(3), [], []
    for lengths in random.integers(1, LONGEST + 1, (REQUESTS, ROWS)):
        ids = random.integers(1000, 30000, (ROWS, int(lengths.max())))
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        got.append(session.run([EMBEDDING], {"input_ids": ids * mask, "attention_mask": mask})[0])
        for row, length in zip(ids, lengths, strict=True):
            alone = torch.from_numpy(row[None, :length]).to(bench.device)
            wanted.append(exact.answers_padded(exact.padded(alone, None), None)[EMBEDDING].cpu().numpy())
    cell["note"] = session.note
    session.close()
    reference = np.concatenate(wanted)
    error = float(np.linalg.norm(np.concatenate(got) - reference) / np.linalg.norm(reference))
    cell |= {"error_norm": error if math.isfinite(error) else None, "passed": error <= cell["bound"]}


def _smi() -> str:
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return repr(error)[:200]
