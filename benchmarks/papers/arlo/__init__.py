"""The evaluation of Arlo's paper beside ours, experiment by experiment: `make figures`.

Results are kept as JSON in benchmarks/results/figures, and docs/evaluation.md is made from these files alone.
"""

from __future__ import annotations

import importlib

from benchmarks.papers.arlo.experiment import Experiment

# In the order of the document.
WHERE = {
    "fig06": ("latency", "FIG06"),
    "fig07": ("load", "EXPERIMENT"),
    "fig08": ("scaling", "EXPERIMENT"),
    "fig10": ("latency", "FIG10"),
    "fig11": ("runtimes", "EXPERIMENT"),
    "tab3": ("allocation", "EXPERIMENT"),
    "tab4": ("dispatch", "EXPERIMENT"),
    "tab2": ("solving", "EXPERIMENT"),
    "fig09": ("overhead", "EXPERIMENT"),
    "facts": ("facts", "EXPERIMENT"),
    "speed": ("speed", "EXPERIMENT"),
}


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    module, constant = WHERE[name]
    found = getattr(importlib.import_module(f"{__name__}.{module}"), constant)
    assert isinstance(found, Experiment)
    return found
