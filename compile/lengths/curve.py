"""Time by maximum length, the basis for the choice of lengths, and its source."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from arlo.catalog.manifest import Manifest, Runtime
from arlo.errors import ConfigError
from arlo.planning.lengths.choice import PAPER_STEP, CostCurve
from arlo.profiler import LatencyProfile, RuntimeProfile, staircase

Source = Literal["latency profile", "measured", "assumed"]
Points = list[tuple[int, float]]
ASSUMED_OVERHEAD_TOKENS = 110
"""What does not depend on the length, in tokens' worth of time: the median over the 24 BERT-base and BERT-large tables
(FP16 and INT8, batch 1, six GPUs) that NVIDIA publishes in demo/BERT of NVIDIA/TensorRT, of the point where the line
through 128 and 384 tokens meets zero (middle half: 97 to 125). The Arlo paper's FP32 BERT-base has 75, BERT-large 41:
there shorter runtimes save more than is assumed here."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourcedCurve:
    """A cost curve and where it comes from."""

    curve: CostCurve
    source: Source
    about: str  # for people: device, runtimes
    notes: tuple[str, ...] = ()  # what a reader should know or do

    @property
    def relative(self) -> bool:
        """Only ratios mean something: the longest runtime takes one second."""
        return self.source == "assumed"

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "source": self.source,
            "about": self.about,
            "reading": self.curve.reading,
            "points": [list(point) for point in self.curve.points],
            "notes": list(self.notes),
        }


def from_profile_file(path: Path, model: str, longest: int) -> SourcedCurve:
    """The curve of `arlo compile profile`'s file; ConfigError when it ends below `longest` or has too few points."""
    measured = LatencyProfile.load(path)
    found = from_profile(measured, longest)
    if measured.model != model:
        note = f"{path.name} was measured with the model {measured.model!r}, and this is {model!r}"
        found = dataclasses.replace(found, notes=(*found.notes, note))
    return found


def from_profile(measured: LatencyProfile, longest: int) -> SourcedCurve:
    """Means at batch 1, through Triton."""
    lines = [(r, [(point.length, point.mean_us) for point in r.points if point.batch == 1]) for r in measured.runtimes]
    return _of_runtimes(lines, longest, f"{measured.device}, by `arlo compile profile`")


def from_manifest(manifest: Manifest, longest: int) -> SourcedCurve:
    """The latencies of a repository, at batch 1."""
    lines = [
        (runtime, [(point.length, float(point.latency_us)) for point in runtime.latency if point.batch == 1])
        for runtime in manifest.runtimes
    ]
    device = next((runtime.device for runtime in manifest.runtimes if runtime.device), "device not stated")
    return _of_runtimes(lines, longest, f"{device}, the latencies of {manifest.model}")


def _of_runtimes(lines: Sequence[tuple[Runtime | RuntimeProfile, Points]], longest: int, about: str) -> SourcedCurve:
    """Static runtimes where there are four and more; else the longest dynamic one, which has more lengths.

    A static runtime was measured at its own length only; lengths in between are assumed to cost as much as the next
    measured one.
    """
    fixed = _cheapest(
        point for runtime, line in lines for point in line if not runtime.dynamic and point[0] == runtime.max_length
    )
    dynamic = [_cheapest(line) for runtime, line in lines if runtime.dynamic and line]
    free = max(dynamic, key=lambda line: line[-1][0], default=[])
    free_fits = len(free) >= 3 and free[-1][0] >= longest
    if len(fixed) >= (4 if free_fits else 2) and fixed[-1][0] >= longest:
        few = f"only {len(fixed)} lengths were measured, and only these can be chosen"
        return SourcedCurve(
            curve=CostCurve(points=tuple(fixed), reading="steps"),
            source="latency profile",
            about=f"{about}, {len(fixed)} static runtimes",
            notes=(few,) if len(fixed) < 4 else (),
        )
    if free_fits:
        return SourcedCurve(
            curve=CostCurve(points=tuple(free), reading=reading_of(free)),
            source="latency profile",
            about=f"{about}, a dynamic runtime at {len(free)} lengths",
            notes=("a dynamic runtime's times stand for those of static ones",),
        )
    reach = max((line[-1][0] for line in (fixed, free) if line), default=0)
    if reach and reach < longest:
        raise ConfigError(
            f"the latencies ({about}) reach {reach} tokens, and texts of up to {longest} are served: measure longer "
            f"runtimes, or serve at most {reach} tokens with --max-length {reach}"
        )
    raise ConfigError(
        f"the latencies ({about}) are of too few lengths to choose from: compile with --lengths 64:{longest}:64 and "
        "measure with `arlo compile profile` first"
    )


def _cheapest(points: Iterable[tuple[int, float]]) -> Points:
    """Ascending lengths, each once: of several runtimes of one length the quickest is served."""
    best: dict[int, float] = {}
    for length, cost in points:
        best[length] = min(cost, best.get(length, math.inf))
    return sorted(best.items())


def reading_of(points: Points) -> Literal["line", "steps"]:
    """How to read between points of one runtime: on a line where the staircase finder sees no steps."""
    return "line" if staircase(points).shape == "linear" else "steps"


def assumed(longest: int, why: str) -> SourcedCurve:
    """Steps of 64 tokens, rising by ASSUMED_OVERHEAD_TOKENS + tokens; the longest takes 1 s, as only ratios matter."""
    ends = range(PAPER_STEP, longest + PAPER_STEP, PAPER_STEP)
    whole = ASSUMED_OVERHEAD_TOKENS + ends[-1]
    return SourcedCurve(
        curve=CostCurve(
            points=tuple((end, 1e6 * (ASSUMED_OVERHEAD_TOKENS + end) / whole) for end in ends), reading="steps"
        ),
        source="assumed",
        about=f"steps of {PAPER_STEP} tokens, {ASSUMED_OVERHEAD_TOKENS} + tokens, as published for BERT on GPUs",
        notes=(
            f"the latency is assumed, not measured: {why}. On the machine that will serve it, run "
            "`arlo compile profile` and build again with --latency-profile",
        ),
    )


def from_points(points: Iterable[Sequence[float]], about: str, notes: Sequence[str] = ()) -> SourcedCurve:
    """A curve from points measured on one dynamic runtime: (tokens, microseconds)."""
    line = _cheapest((int(length), float(cost)) for length, cost in points)
    return SourcedCurve(
        curve=CostCurve(points=tuple(line), reading=reading_of(line)),
        source="measured",
        about=f"{about}: a dynamic runtime at {len(line)} lengths",
        notes=tuple(notes),
    )
