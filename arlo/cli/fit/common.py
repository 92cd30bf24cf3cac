"""The shared parts of `arlo fit`: the study of a cascade."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from arlo.errors import EnvironmentProblem

if TYPE_CHECKING:
    from arlo.cascade.study import Study


def folder_of(cascade: Path) -> Path:
    """The folder of a cascade.json; repositories are named relative to it."""
    return cascade if cascade.is_dir() else cascade.parent


def need_scipy() -> None:
    """EnvironmentProblem if it is not installed."""
    import importlib.util

    if importlib.util.find_spec("scipy") is None:
        raise EnvironmentProblem("this needs SciPy: pip install 'arlo-serve[cascade]'")


def what_accuracy_is(study: Study) -> str:
    """The heading of a column of accuracies."""
    return "accuracy" if study.labels is not None else "agreement"
