"""Runs experiments whose inputs have changed since their result was kept, and keeps the results as JSON."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from arlo.clock import monotonic_s, unix_s
from benchmarks.figures.cells import Context
from benchmarks.figures.experiment import Experiment, plain
from benchmarks.figures.registry import experiments

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "figures"
SHORT_RESULTS = ROOT / "reports" / "short"
# Which results were made in this checkout, so that a fresh clone makes all of them.
STAMPS = ROOT / "build" / "figures"
# What a simulated figure depends on. A change in any of these runs every experiment again.
SOURCES = (
    ("simulator", "*.py"),
    ("traces", "*.py"),
    ("traces/data", "*.json"),
    ("arlo/planning", "*.py"),
    ("src/simulate", "*.[ch]*"),
    ("src/dispatch", "*.[ch]*"),
    ("src/solve", "*.[ch]*"),
)
SHARED = ("cells.py", "compare.py", "experiment.py", "notes.py")
_NOT_INPUTS = {"plots.py", "report.py", "sections.py", "config.py"}  # of the simulator: how results are shown


def fingerprint(experiment: Experiment, *, short: bool) -> str:
    """Of everything that the experiment's result depends on: code, data, and files that it collects."""
    digest = hashlib.sha256(f"{experiment.NAME} {short}".encode())
    for path in _inputs(experiment):
        digest.update(str(path.relative_to(ROOT)).encode() if path.is_relative_to(ROOT) else path.name.encode())
        digest.update(path.read_bytes() if path.exists() else b"absent")
    return digest.hexdigest()[:16]


def _inputs(experiment: Experiment) -> Iterable[Path]:
    here = Path(__file__).parent
    yield Path(experiment.__file__)
    yield from (here / name for name in SHARED)
    if getattr(experiment, "COLLECTED", None) is None:
        for folder, pattern in SOURCES:
            found = sorted((ROOT / folder).rglob(pattern))
            yield from (path for path in found if path.name not in _NOT_INPUTS)
    for name in getattr(experiment, "COLLECTED", None) or ():
        yield ROOT / name


class Store:
    """Where results are kept. Those of short runs do not mix with the others."""

    def __init__(self, *, short: bool, folder: Path | None = None) -> None:
        self.short = short
        self.folder = folder or (SHORT_RESULTS if short else RESULTS)
        self._stamps = STAMPS if folder is None else folder

    def kept(self, name: str) -> dict[str, Any] | None:
        """The result that is kept, if any."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def all_kept(self) -> dict[str, dict[str, Any]]:
        """All results kept, by name, in the order of the report."""
        return {name: found for name in experiments() if (found := self.kept(name)) is not None}

    def is_current(self, experiment: Experiment) -> bool:
        """Whether the kept result was made here, of the inputs as they are."""
        found, stamp = self.kept(experiment.NAME), self._stamp(experiment.NAME)
        wanted = fingerprint(experiment, short=self.short)
        return found is not None and found["fingerprint"] == wanted and stamp.exists() and stamp.read_text() == wanted

    def keep(self, name: str, result: dict[str, Any]) -> Path:
        """Write a result; a run that is interrupted leaves the one before it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stamps.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.json"
        partial = path.with_suffix(".part")
        partial.write_text(_lines(result))
        partial.replace(path)
        self._stamp(name).write_text(result["fingerprint"])
        return path

    def _stamp(self, name: str) -> Path:
        return self._stamps / f"{name}{'-short' if self.short else ''}.stamp"


def perform(
    experiment: Experiment,
    context: Context,
    store: Store,
    *,
    command: str,
    stamp: str,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Run an experiment and keep its result. `stamp`: fingerprint of its inputs when its module was loaded."""
    from benchmarks import harness

    context.told(progress)
    began_s = monotonic_s()
    outcome = experiment.run(context)
    missing = set(experiment.PAPER) - {row.target for row in outcome.rows}
    unknown = {row.target for row in outcome.rows} - set(experiment.PAPER)
    if missing or unknown:
        raise RuntimeError(f"{experiment.NAME}: no row for {sorted(missing)}, no target for {sorted(unknown)}")
    result = {
        "command": command,
        "date": time.strftime("%Y-%m-%d", time.gmtime(unix_s())),
        "machine": harness.machine(),
        "name": experiment.NAME,
        "title": experiment.TITLE,
        "text": experiment.TEXT,
        "short": context.short,
        "fingerprint": stamp,
        "wall_s": round(monotonic_s() - began_s, 2),
        "simulated_requests": context.simulated,
        "targets": plain(experiment.PAPER),
        **plain(outcome),
    }
    return store.keep(experiment.NAME, result)


def _lines(result: dict[str, Any]) -> str:
    """JSON with a line for each entry of the lists, so that a change shows as one."""
    parts = []
    for key, value in result.items():
        if isinstance(value, list) and value:
            items = ",\n  ".join(json.dumps(item) for item in value)
            parts.append(f" {json.dumps(key)}: [\n  {items}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
