"""Step 5, lengths: how many runtimes to build, and for which maximum lengths.

Input: the latency over the length, the lengths of the requests, the longest length served. Output: the lengths, and
what each further runtime would save. Cache key: the curve's points, the counts, the options, this code and that of
`arlo.planning.lengths.choice`. Check: the longest length is served, and the model can read it.

The latency comes from `options.latency_profile`; else it is measured here, if this machine runs the engine; else it is
assumed, and the result notes it. With lengths named by the user, the same figures are computed for comparison.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

import arlo.planning.lengths.choice as planning
from arlo.compile.cache import Entry, code_version
from arlo.compile.job import Job
from arlo.compile.lengths.curve import SourcedCurve, assumed, from_points, from_profile_file
from arlo.compile.lengths.measure import Measure, measured_here, refined
from arlo.compile.options import CompileOptions
from arlo.planning.lengths.choice import LEAST_SAVING, Choice, Evaluation
from arlo.traces.traffic import Traffic, traffic

DEFAULT_LONGEST = 512


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LengthChoice:
    """The choice and its inputs."""

    choice: Choice
    curve: SourcedCurve
    traffic: Traffic

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths to build: those that the user named, else the best."""
        return (self.choice.given or self.choice.chosen).lengths

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes and recommendations for the reader."""
        said = list(self.curve.notes)
        if self.traffic.cut_share > 0:
            said.append(
                f"{self.traffic.cut_share:.2%} of the requests are longer than {self.traffic.longest} tokens, the "
                "longest served; they count as that long"
            )
        return tuple(said)


def choose_step(job: Job, *, measure: Measure | None = None) -> Entry:
    """Entry with meta `lengths` (ascending, to build), `notes` (for people), and what `choice_of` reads.

    measure: microseconds of one row at lengths in tokens, replacing a measurement of the dynamic runtime here. With
    `options.lengths` named, these are the lengths, and the best ones are reported next to them. ConfigError for a
    histogram or latency profile that cannot be read, and for a longest length that the model cannot read or that
    was not measured.
    """
    options = job.options
    longest = longest_served(options, job.model.max_tokens)
    requests = traffic(options.histogram, longest)
    curve = _curve(job, longest, measure)
    inputs = {
        "curve": curve.as_dict(),
        "traffic": {
            "spec": requests.spec,
            "text": requests.text,
            "longest": longest,
            "cut_share": requests.cut_share,
            "counts": [[length, count] for length, count in requests.by_length.items()],
        },
        "max_runtimes": options.max_runtimes,
        "given": list(options.lengths) if isinstance(options.lengths, tuple) else None,
    }
    code = hashlib.sha256(Path(planning.__file__).read_bytes()).hexdigest()[:16]
    parts = {**inputs, "code": [code, code_version("steps/lengths")]}

    def make(_: object) -> dict[str, Any]:
        choice = _choice(inputs)
        return {"lengths": list(choice.lengths), "notes": list(choice.notes), "inputs": inputs}

    return job.cache.step("lengths", parts, make)


def choice_of(entry: Entry) -> LengthChoice:
    """The choice that a step made; its figures are recomputed from the step's inputs, in milliseconds."""
    return _choice(entry.meta["inputs"])


def choose_lengths(
    curve: SourcedCurve,
    requests: Traffic,
    *,
    max_runtimes: int = 8,
    least_saving: float = LEAST_SAVING,
    given: tuple[int, ...] | None = None,
) -> LengthChoice:
    """The choice for a curve and a traffic, without a build; arguments as in `arlo.planning.lengths.choice.choose`."""
    choice = planning.choose(
        curve.curve, requests.counts, max_runtimes=max_runtimes, least_saving=least_saving, given=given
    )
    return LengthChoice(choice=choice, curve=curve, traffic=requests)


def evaluate(choice: LengthChoice, lengths: tuple[int, ...]) -> Evaluation:
    """The cost of other lengths on the same curve and traffic."""
    return planning.evaluate(lengths, choice.curve.curve, choice.traffic.counts)


def longest_served(options: CompileOptions, max_tokens: int | None) -> int:
    """The longest length to serve; `max_tokens` is the model's limit, None: any length."""
    if isinstance(options.lengths, tuple):
        return options.lengths[-1]
    if options.max_length is None:
        return min(DEFAULT_LONGEST, max_tokens or DEFAULT_LONGEST)
    return options.max_length  # which the first step has checked


def _curve(job: Job, longest: int, measure: Measure | None) -> SourcedCurve:
    if job.options.latency_profile is not None:
        return from_profile_file(job.options.latency_profile, job.model.name, longest)
    if measure is not None:
        return from_points(refined(measure, longest), "measured")
    why = job.engine.cannot_run()
    return assumed(longest, why) if why else measured_here(job, longest)


def _choice(inputs: dict[str, Any]) -> LengthChoice:
    raw = inputs["traffic"]
    counts = np.zeros(raw["longest"] + 1, np.int64)
    for length, count in raw["counts"]:
        counts[length] = count
    requests = Traffic(counts=counts, spec=raw["spec"], text=raw["text"], cut_share=raw["cut_share"])
    given = None if inputs["given"] is None else tuple(inputs["given"])
    return choose_lengths(SourcedCurve.of(inputs["curve"]), requests, max_runtimes=inputs["max_runtimes"], given=given)
