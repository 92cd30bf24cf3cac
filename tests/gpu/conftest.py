"""Tests that need an NVIDIA GPU: each is marked `gpu`, and skipped with the reason where there is none.

`pytest tests/gpu` also runs in a plain checkout, on a machine that has torch, numpy and pytest, and no Arlo installed.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
importlib.import_module("benchmarks.gpu.standalone").attach()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        problem = _of_tensorrt() if item.path.name == "test_tensorrt.py" else _of_torch()
        if problem:
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {problem}"))


@functools.cache
def _of_tensorrt() -> str:
    from arlo.compile.engines.tensorrt_gpu import find_gpu

    return find_gpu().problem


@functools.cache
def _of_torch() -> str:
    try:
        import torch
    except ImportError:
        return "torch is missing"
    return "" if torch.cuda.is_available() else "torch sees no CUDA device"
