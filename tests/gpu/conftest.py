"""Tests that need an NVIDIA GPU: each is marked `gpu`, and skipped with the reason where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from arlo.compile.engines.tensorrt_gpu import find_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    problem = find_gpu().problem if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if problem:
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {problem}"))
