"""`make_workload`: a workload from simple settings, as the command line and TOML files have them."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from arlo.errors import ConfigError
from arlo.traces.drift import parse_drift
from arlo.traces.generate import rescale as stretch
from arlo.traces.histogram import DATA
from arlo.traces.lengths import parse_length_spec
from arlo.traces.processes import DEFAULT_BURST, DEFAULT_SOJOURN_MS, Arrivals, MarkovModulated, Poisson, Renewal
from arlo.traces.rates import Rate, Series, Steps, parse_rate
from arlo.traces.readers import read_counts, read_trace
from arlo.traces.trace import Trace
from arlo.traces.workloads import Replayed, Synthetic, replayed

ArrivalsName = Literal["poisson", "mmpp", "gamma", "constant", "twitter-stable", "twitter-bursty"]
ARRIVALS: tuple[ArrivalsName, ...] = get_args(ArrivalsName)

DEFAULT_DURATION_S = 600.0
DEFAULT_RATE = 1000.0


def make_workload(
    *,
    arrivals: str | None = None,
    rate: float | str | None = None,
    duration_s: float | None = None,
    length: str | None = None,
    rescale: int | None = None,
    drift: str | None = None,
    seed: int = 0,
    burst: float | None = None,
    sojourn_ms: float | str | None = None,
    cv: float | None = None,
    counts: Path | str | None = None,
    segment: str | None = None,
    smooth_s: float | None = None,
    trace: Path | str | None = None,
    tokens: str | None = None,
    name: str | None = None,
) -> Synthetic | Replayed:
    """A workload; None is the default of a setting. traces/README.md says what each means.

    arrivals: poisson (default), mmpp, gamma, constant, twitter-stable, twitter-bursty.
    rate: mean requests per second (default 1000), or `steps:0=100,60=200`, `ramp:100:500`, `sine:MEAN:DEPTH:PERIOD_S`;
        with counts or a segment, the mean that these are scaled to; with a trace, the mean that it is sped up or slowed
        down to (default: as it is).
    duration_s: default 600, or that of the counts, the segment or the trace.
    length: paper (default: stretched to 512), tweets, fixed:N, uniform:MIN:MAX, lognormal:MEDIAN:P98:MAX,
        bimodal:A:B:SHARE_OF_B, mixture:SHARE*SPEC+SHARE*SPEC, file:PATH; with a trace, the trace's own.
    rescale: stretch 125 tokens to so many, and cut longer lengths to it.
    drift: of lengths: none (default; with twitter-*, paper), weak, paper, SPREAD[:TAU_S[:MEDIAN]] or sample:N.
    seed: of all that is random.
    burst, sojourn_ms: of mmpp and twitter-bursty: rate while busy over rate while quiet (3); mean sojourn in each state
        (100), or `BUSY:QUIET`.
    cv: of gamma: coefficient of variation of the gaps (2).
    counts, segment, smooth_s: a file of counts per second or minute, the window in it, and the seconds that a mean is
        taken over (10). A segment without a file is one of the loads that are shipped: see shipped_loads.
    trace: a file of requests; arrivals, length, drift and counts do not go with it. tokens: which of an Azure LLM
        trace's counts is the length (context, generated, total).

    ConfigError says which setting is wrong and what it may be.
    """
    if trace is not None:
        given = {
            "arrivals": arrivals, "length": length, "drift": drift, "burst": burst, "sojourn_ms": sojourn_ms, "cv": cv,
            "counts": counts, "segment": segment, "smooth_s": smooth_s,
        }  # fmt: skip
        _refuse(given, "a trace has its own arrivals and lengths")
        path = Path(trace)
        read = read_trace(path, tokens=tokens or "context")
        changed, how = _changed(path, read, rate, rescale)
        if duration_s is not None and duration_s > changed.duration_s * 1.001 + 1:
            raise ConfigError(f"{path} ends after {changed.duration_s:g} s, before the duration of {duration_s:g} s")
        return replayed(changed, name or path.stem, path.name + how, duration_s=duration_s)
    kind = arrivals if arrivals is not None else "poisson"
    if kind not in ARRIVALS:
        raise ConfigError(f"arrivals {kind!r} are not known{_hint(kind, ARRIVALS)}: {', '.join(ARRIVALS)}")
    _refuse({"tokens": tokens}, "it is for the trace of a file")
    twitter = kind.startswith("twitter-")
    load, duration = _load(rate, duration_s, counts, segment, smooth_s)
    spec = length if length is not None else "paper"
    lengths = parse_length_spec(spec, rescale)
    return Synthetic(
        name=name or (kind if segment is None else f"{kind}-{segment}"),
        duration_s=duration,
        rate=load,
        arrivals=_process(kind, burst, sojourn_ms, cv),
        lengths=lengths,
        drift=parse_drift(drift if drift is not None else "paper" if twitter else "none"),
        seed=seed,
    )


@functools.cache
def shipped_loads() -> dict[str, Series]:
    """Relative loads, mean 1, by name. Their source: traces/README.md."""
    raw = json.loads((DATA / "twitter_load.json").read_text())
    return {
        name: Series(
            np.array(values) / np.mean(values), float(raw["step_s"]), f"window {name} of {raw['short_source']}"
        )
        for name, values in raw["relative"].items()
    }


def _load(
    rate: float | str | None,
    duration_s: float | None,
    counts: Path | str | None,
    segment: str | None,
    smooth_s: float | None,
) -> tuple[Rate, float]:
    if counts is None:
        _refuse({"smooth_s": smooth_s}, "it is for a file of counts")
    if counts is None and segment is None:
        duration = DEFAULT_DURATION_S if duration_s is None else duration_s
        return parse_rate(DEFAULT_RATE if rate is None else rate, duration), duration
    if counts is not None:
        read = read_counts(Path(counts), segment)
        relative, native = read.relative(10.0 if smooth_s is None else smooth_s), float(read.count.mean()) / read.step_s
    else:
        loads = shipped_loads()
        if segment not in loads:
            close = _hint(str(segment), loads)
            raise ConfigError(f"no load {segment!r} is shipped{close}: {', '.join(loads)}; or name a file of counts")
        relative, native = loads[segment], DEFAULT_RATE
    steady = parse_rate(native if rate is None else rate, 1.0)
    if not isinstance(steady, Steps) or len(steady.rate) != 1:
        raise ConfigError(f"with counts or a segment the rate is one number, their mean, not {rate!r}")
    duration = len(relative.rate) * relative.step_s if duration_s is None else duration_s
    return dataclasses.replace(relative, rate=relative.rate * steady.rate[0]), duration


def _process(kind: str, burst: float | None, sojourn_ms: float | str | None, cv: float | None) -> Arrivals:
    if kind not in {"mmpp", "twitter-bursty"}:
        _refuse({"burst": burst, "sojourn_ms": sojourn_ms}, "they are for mmpp and twitter-bursty arrivals")
    if kind != "gamma":
        _refuse({"cv": cv}, "it is for gamma arrivals")
    if kind in {"mmpp", "twitter-bursty"}:
        busy_ms, quiet_ms = _sojourns(DEFAULT_SOJOURN_MS if sojourn_ms is None else sojourn_ms)
        return MarkovModulated(
            burst=DEFAULT_BURST if burst is None else burst,
            busy_ms=busy_ms,
            quiet_ms=quiet_ms,
            per_second=kind == "twitter-bursty",
        )
    if kind in {"gamma", "constant"}:
        return Renewal(0.0 if kind == "constant" else 2.0 if cv is None else cv)
    return Poisson()


def _sojourns(value: float | str) -> tuple[float, float]:
    try:
        parts = [float(part) for part in str(value).split(":")]
    except ValueError:
        parts = []
    if len(parts) not in {1, 2}:
        raise ConfigError(f"sojourn_ms is MS or BUSY:QUIET, not {value!r}")
    return parts[0], parts[-1]


def _changed(path: Path, trace: Trace, rate: float | str | None, rescale: int | None) -> tuple[Trace, str]:
    """The trace at another speed, with stretched lengths, and a description of the changes."""
    how = ""
    if rate is not None:
        if isinstance(rate, str):
            raise ConfigError(f"with a trace the rate is a number, the mean that it is brought to, not {rate!r}")
        if trace.rate <= 0:
            raise ConfigError(f"{path} has no rate that could be changed: it needs two requests at different times")
        how += f", at {rate / trace.rate:g} times its speed"
        trace = trace.faster(rate / trace.rate)
    if rescale is not None:
        trace = dataclasses.replace(trace, length=stretch(trace.length, rescale))
        how += f", lengths times {rescale}/125"
    return trace, how


def _refuse(settings: Mapping[str, object], why: str) -> None:
    given = [key for key, value in settings.items() if value is not None]
    if given:
        raise ConfigError(f"{' and '.join(given)} cannot be set here: {why}")


def _hint(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
