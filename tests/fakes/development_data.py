"""Development data: published traces and tables that the project does not carry.

The environment variable ARLO_TRACES names their folder; without it the tests that compare with them are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "ARLO_TRACES"


def development_file(name: str) -> Path:
    """The file of that name below the folder, such as "latency/bert_tensorrt_demo.csv"; skips the test without it."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder of development data")
    path = Path(folder) / name
    if not path.is_file():
        pytest.skip(f"{VARIABLE} has no {name}")
    return path
