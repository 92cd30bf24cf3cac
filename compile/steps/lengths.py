"""Step 5, lengths: how many runtimes to build, and for which maximum lengths.

Input: the latency over the length, the lengths of the requests, the longest length served. Output: the lengths, and
what each further runtime would save. Cache key: none, it takes milliseconds; the measured curve is cached by itself.
Check: the longest length is served, and the model can read it.

The latency comes from `options.latency_profile`; else it is measured here, if this machine runs the engine; else it is
assumed, and the result notes it.
"""

from __future__ import annotations

import dataclasses

import arlo.planning.lengths.choice as planning
from arlo.compile.job import Job
from arlo.compile.lengths.curve import SourcedCurve, assumed, from_profile_file
from arlo.compile.lengths.measure import measured_here
from arlo.compile.options import CompileOptions
from arlo.planning.lengths.choice import LEAST_SAVING, Choice
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
        cut = (
            f"{self.traffic.cut_share:.2%} of the requests are longer than {self.traffic.longest} tokens, the longest "
            "served; they count as that long"
        )
        return (*self.curve.notes, *([cut] if self.traffic.cut_share > 0 else []))


def choose(job: Job) -> LengthChoice:
    """The lengths to build.

    ConfigError for a histogram or latency profile that cannot be read, and for a longest length that the model cannot
    read or that was not measured.
    """
    options, model = job.options, job.model
    longest = longest_served(options, model.max_tokens)
    requests = traffic(options.histogram, longest)
    if options.latency_profile is not None:
        curve = from_profile_file(options.latency_profile, model.name, longest)
    else:
        why = job.engine.cannot_run()
        curve = assumed(longest, why) if why else measured_here(job, longest)
    return choose_lengths(curve, requests, max_runtimes=options.max_runtimes)


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


def longest_served(options: CompileOptions, max_tokens: int | None) -> int:
    """The longest length to serve; `max_tokens` is the model's limit, None: any length."""
    if isinstance(options.lengths, tuple):
        return options.lengths[-1]
    if options.max_length is None:
        return min(DEFAULT_LONGEST, max_tokens or DEFAULT_LONGEST)
    return options.max_length  # which the first step has checked
