"""The experiments, in the order of the report."""

from __future__ import annotations

import importlib
from typing import cast

from benchmarks.figures.experiment import Experiment

MODULES = (
    "fig06_testbed",
    "fig07_load",
    "fig08_scaling",
    "fig10_scale",
    "fig11_runtimes",
    "tab3_allocation",
    "tab4_dispatch",
    "tab2_ilp",
    "fig09_overhead",
    "fidelity",
    "facts",
    "speed",
)


def experiments() -> dict[str, Experiment]:
    """By name."""
    found = {}
    for module in MODULES:
        loaded = cast(Experiment, importlib.import_module(f"benchmarks.figures.{module}"))
        found[loaded.NAME] = loaded
    return found
