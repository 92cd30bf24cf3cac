"""The demo's second part: the gain from lengths on a GPU, shown with emulated engines on real workers and gateway.

On a CPU a fixed shape gains nothing, so the first part serves the deployment that the machine's figures recommend. Here
the engines compute nothing and wait for the times of a GPU's published table; all else is real, and all output states
this.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.demos.whole.measure import digits

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.config import Config
    from arlo.replay import ReplayResult
    from arlo.workers.emulated.repository import EmulatedRuntime

PROFILE = "bert-large-t4-fp16"
LENGTHS = (128, 256, 384, 512)
WORKERS = 4
SLO_MS = 150
OVER = 1.4
"""The rate over what the workers carry when every row is padded to the longest length: padding cannot, lengths can."""

BY_LENGTH = {128: 1, 256: 2, 512: 1}
PADDED = {512: WORKERS}
ROWS = 8  # of a batch, at most
WAYS: dict[str, dict[int, int]] = {  # -> instances by length; none: every worker holds all lengths, and takes batches
    "padded to the longest": PADDED,
    "by length": BY_LENGTH,
    "all lengths on each, in batches": {},
}
SLOW = 1.25  # time at a worker over the table's: above it the machine is too busy for an engine to keep its time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The latencies that the engines keep to: milliseconds of one row at each of LENGTHS, and where they come from."""

    latency_ms: tuple[float, ...]
    runtimes: tuple[EmulatedRuntime, ...]
    source: str

    @property
    def rate(self) -> float:
        """Requests per second to send, in whole tens."""
        return 10 * round(OVER * WORKERS * 1000 / self.latency_ms[-1] / 10)


def table() -> Table:
    """The table of the published latencies that the package carries."""
    from arlo.simulator.profiles import load_profile
    from arlo.workers.emulated.repository import emulated

    profile = load_profile(PROFILE)
    models = profile.static_runtimes(LENGTHS, max_batch=ROWS)
    runtimes = tuple(emulated(each, model="emulated") for each in models)
    return Table(
        latency_ms=tuple(round(profile.static_ms(n), 3) for n in LENGTHS), runtimes=runtimes, source=profile.source
    )


def repository(folder: Path, times: Table) -> Manifest:
    """Writes the emulated runtimes."""
    from arlo.workers.emulated.repository import write_runtimes

    folder.mkdir(parents=True, exist_ok=True)
    return write_runtimes(folder, model="emulated", runtimes=times.runtimes, token_dims=1)


def configured(demo: Config, folder: Path, allocation: dict[int, int], run_dir: Path) -> Config:
    """The demo's configuration with emulated engines: on a fixed allocation one row at a time, else bundles."""
    return dataclasses.replace(
        demo,
        model=dataclasses.replace(demo.model, name="emulated", source=None, repository=folder, slo_ms=SLO_MS),
        workers=dataclasses.replace(demo.workers, count=WORKERS, run_dir=run_dir),
        deployment=dataclasses.replace(
            demo.deployment, allocation=allocation, dynamic=0, runtimes="recommended" if allocation else "bundle"
        ),
        dispatch=dataclasses.replace(demo.dispatch, batching="one" if allocation else "deadline"),
        control=dataclasses.replace(demo.control, reallocate=not allocation),  # of bundles nothing is planned
    )


def replayed(endpoint: str, stop: threading.Event, *, rate: float, duration_s: float, seed: int) -> ReplayResult:
    """Replay the same arrivals and lengths for every allocation; random ids, as the engines read no text. Blocks."""
    from arlo.replay import ReplayOptions, run_replay
    from arlo.traces import parse_lengths, poisson, rescale

    draw = parse_lengths("tweets")
    trace = poisson(rate, duration_s, lambda n, rng: rescale(draw(n, rng), LENGTHS[-1]), seed)
    options = ReplayOptions(endpoint=endpoint, model="emulated", seed=seed, slo_ms=SLO_MS, drain_s=10.0)
    return run_replay(trace, options, stop=stop)


def line(name: str, result: ReplayResult) -> str:
    """One allocation's outcome in a line."""
    s = result.summary
    latency = "nothing was answered"
    if s.latency is not None:
        latency = f"latency mean {digits(s.latency.mean_ms)} ms, p98 {digits(s.latency.p98_ms)} ms"
    computed = "" if s.padding is None else f", {s.padding.share:.0%} of the computed tokens are padding"
    on_time = f"{s.slo_attainment:.1%} of {s.requests} on time, {digits(s.goodput_rps)} per second"
    return f"{name}: {on_time}; {latency}{computed}"


def gain(results: Mapping[str, ReplayResult]) -> str:
    """What the ways bring, in a sentence."""
    shares = ", ".join(f"{result.summary.slo_attainment:.1%} {name}" for name, result in results.items())
    return f"On time with the same arrivals on emulated engines: {shares}."


def picture(results: Mapping[str, ReplayResult], rate: float) -> Any:
    """A bar for each way: its share of requests on time."""
    from arlo.report.result import chart, line

    shares = [100 * result.summary.slo_attainment for result in results.values()]
    bars = line(f"{WORKERS} workers", results, shares, "bars", text=[f"{share:.1f} %" for share in shares])
    title, y = f"Emulated GPU: on time at {rate:g} requests per second", f"within {SLO_MS} ms (%)"
    return chart(title, "", y, [bars], y_range=[0, 100])


def doubt(times: Table, padded: ReplayResult, at_a_worker: int) -> str:
    """What to say where the machine was too busy for the engines to keep their times; empty otherwise.

    at_a_worker: rows sent to one worker at a time (dispatch.inflight_limit); an overloaded worker always has them, so
    a row's time there is that of all of them.
    """
    took_ms = padded.summary.server.execute_ms
    expected_ms = at_a_worker * times.latency_ms[-1]
    if took_ms is None or took_ms <= SLOW * expected_ms:
        return ""
    return (
        f"This machine is too busy for this part: a worker that answers within {digits(expected_ms)} ms took "
        f"{digits(took_ms)} ms in the mean. Do not go by these two lines; run it again when the machine is quieter."
    )
