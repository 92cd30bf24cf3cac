"""The shared parts of `arlo fit`: options that are lists, and the study of a cascade."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from arlo.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from rich.console import Console

    from arlo.cascade.study import Study

TIMES_MS = (1e-3, 3.6e6)


def study_of(cascade: Path, texts: Path, records: Path | None = None) -> Study:
    """A fitted cascade with its records. `cascade`: a cascade.json or its folder; `records`: the folder of the records,
    by default `records` next to the cascade."""
    from arlo.cascade.manifest import CascadeManifest
    from arlo.cascade.records import Records, read_data
    from arlo.cascade.study import load_study

    need_scipy()
    found, folder, data = CascadeManifest.load(cascade), folder_of(cascade), read_data(texts)
    kept = Records(records or folder / "records", data)
    used = found.data
    if used is None:
        return load_study(found, folder, data, kept)
    return load_study(found, folder, data, kept, shares=used.split, seed=used.seed)


def folder_of(cascade: Path) -> Path:
    """The folder of a cascade.json; repositories are named relative to it."""
    return cascade if cascade.is_dir() else cascade.parent


def need_scipy() -> None:
    """EnvironmentProblem if it is not installed."""
    import importlib.util

    if importlib.util.find_spec("scipy") is None:
        raise EnvironmentProblem("this needs SciPy: pip install 'arlo-serve[cascade]'")


def numbers(text: str | None, option: str) -> tuple[float, ...]:
    """The numbers of a list joined by commas; empty if the option is absent."""
    try:
        found = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise ConfigError(f"{option} must be numbers joined by commas, not {text!r}")
    return found


def within(value: float | None, low: float, high: float, option: str) -> None:
    """ConfigError unless the value is None or from `low` to `high`."""
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{option} must be from {low:g} to {high:g}, not {value:g}")


def lengths(text: str | None, option: str) -> tuple[int, ...]:
    """Ascending lengths, joined by commas."""
    found = tuple(int(value) for value in numbers(text, option))
    if list(found) != sorted(set(found)) or any(value < 1 for value in found):
        raise ConfigError(f"{option} must be lengths that ascend, not {text!r}")
    return found


def names(text: str | None) -> tuple[str, ...]:
    """Names joined by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def shares(text: str | None) -> tuple[float, float, float] | None:
    """The three shares of --split, whose sum is 1; None if it is absent."""
    if text is None:
        return None
    found = numbers(text, "--split")
    if len(found) != 3 or min(found) <= 0 or not abs(sum(found) - 1) <= 1e-9:
        raise ConfigError(f"--split must be three shares above 0 whose sum is 1, not {text!r}")
    return found[0], found[1], found[2]


def what_accuracy_is(study: Study) -> str:
    """The heading of a column of accuracies."""
    return "accuracy" if study.labels is not None else "agreement"


def wide_console() -> Console:
    """A console on stdout that breaks no table into several lines."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, 160)
    return console
