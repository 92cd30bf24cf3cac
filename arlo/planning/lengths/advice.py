"""Does polymorphing pay on this device? Static runtimes per length against the dynamic one, from a manifest. Pure.

    recommendation = advise(manifest, {12: 400, 60: 90, 300: 10}, lengths="tweets")

All figures are measured times of single rows (batch 1), so nothing here distinguishes CPUs from GPUs: where kernels for
a fixed shape are quicker, static wins by measurement, and where they are not, the dynamic runtime does.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Literal

from arlo.catalog.manifest import Compared, Manifest, Recommendation, Runtime
from arlo.planning.allocation.curves import curve, static_runtimes

LEAST_SAVED = 0.15
"""Share of the dynamic runtime's expected time that static ones must save to be recommended.

Splitting the workers over lengths costs something: a request waits for an instance of its level, or is padded further,
where any worker of a dynamic deployment would have taken it. Simulated (docs/tuning.md), 4 workers break even at
some 23 %, 10 at 13 % and 40 at 5 %. And two measurements of one runtime on a shared machine differ by some percent; the
manifest has no confidence intervals."""

DISTURBED = 0.8
"""A dynamic runtime that takes less than this share of the time of a static one at its full length is a sign of other
work on the machine while the static one was measured: fixing the shape takes away nothing that a kernel could use."""


def advise(manifest: Manifest, counts: Mapping[int, int], *, lengths: str) -> Recommendation | None:
    """Compare the runtimes over the traffic and recommend the ones to serve.

    counts: requests by length in tokens; those longer than the longest runtime are left out, as nothing serves them.
    lengths: a description of that traffic, for people. None if `missing` returns a sentence, or no request is left.

    Expected times: `static`, every row on the shortest static runtime that takes it, padded to its max_length;
    `dynamic`, at its real length, linear between measured lengths and flat outside them, as the gateway reads a
    profile; `padded`, all on the longest static runtime; `profiles`, on an engine with several optimisation profiles,
    if there is one. At equal times the dynamic runtime is better: see LEAST_SAVED.
    """
    if missing(manifest):
        return None
    static = static_runtimes(manifest.runtimes)
    times = {"static": _static_us(static), "padded": _constant(_row_us(static[-1]))}
    for kind, runtime in _dynamic(manifest).items():
        times[kind] = _dynamic_us(runtime)
    served = {length: count for length, count in counts.items() if 1 <= length <= static[-1].max_length and count > 0}
    if not served:
        return None
    rows = sum(served.values())
    mean_us = {
        kind: round(sum(count * time(length) for length, count in served.items()) / rows, 1)
        for kind, time in times.items()
    }
    rival = "profiles" if mean_us.get("profiles", float("inf")) < mean_us.get("dynamic", float("inf")) else "dynamic"
    serve: Literal["static", "dynamic"] = (
        "static" if mean_us["static"] <= (1 - LEAST_SAVED) * mean_us[rival] else "dynamic"
    )
    plain = times.get("dynamic")
    compared = tuple(
        Compared(
            length=runtime.max_length,
            static_us=_row_us(runtime),
            dynamic_us=None if plain is None else round(plain(runtime.max_length), 1),
            padded_us=_row_us(static[-1]),
        )
        for runtime in static
    )
    return Recommendation(
        serve=serve,
        why=_why(serve, rival, mean_us, lengths) + _doubt(compared),
        device=static[0].device,
        lengths=lengths,
        mean_us=mean_us,
        compared=compared,
    )


def missing(manifest: Manifest) -> str:
    """The part missing for a comparison of static and dynamic runtimes: a sentence without full stop, empty if none."""
    static = [runtime for runtime in manifest.runtimes if not runtime.dynamic]
    dynamic = list(_dynamic(manifest).values())
    if not static:
        return "there is no static runtime to compare with"
    if not dynamic:
        return "there is no dynamic runtime to compare with: `arlo compile` builds one unless --no-dynamic is given"
    unmeasured = [runtime.name for runtime in (*static, *dynamic) if not runtime.latency]
    if unmeasured:
        how = "run `arlo compile profile REPOSITORY --update` where it serves"
        return f"no latency of {_some(unmeasured)} was measured: {how}"
    devices = sorted({runtime.device for runtime in (*static, *dynamic)})
    if len(devices) > 1:
        return f"the runtimes were measured on different devices ({'; '.join(devices)}): measure all on one"
    longest = max(runtime.max_length for runtime in static)
    if any(runtime.max_length != longest for runtime in dynamic):
        return f"the longest static runtime takes {longest} tokens and a dynamic one {dynamic[0].max_length}"
    return ""


def dynamic_runtime(manifest: Manifest) -> Runtime | None:
    """The dynamic runtime to serve, if any: the longest; of two such the one measured quicker.

    There are two if one has several optimisation profiles: it is used only if the recommendation found it quicker.
    """
    found = _dynamic(manifest)
    longest = max((runtime.max_length for runtime in found.values()), default=0)
    found = {kind: runtime for kind, runtime in found.items() if runtime.max_length == longest}
    means = manifest.recommendation.mean_us if manifest.recommendation else {}
    if len(found) == 2 and means.get("profiles", float("inf")) < means.get("dynamic", float("inf")):
        return found["profiles"]
    return found.get("dynamic", found.get("profiles"))


def _dynamic(manifest: Manifest) -> dict[str, Runtime]:
    """The longest dynamic runtime of each kind: `dynamic`, `profiles`."""
    best: dict[str, Runtime] = {}
    for runtime in manifest.runtimes:
        if not runtime.dynamic:
            continue
        kind = "profiles" if runtime.profiles else "dynamic"
        if kind not in best or runtime.max_length > best[kind].max_length:
            best[kind] = runtime
    return best


def _row_us(runtime: Runtime) -> float:
    return round(curve(runtime).batch_ms(1) * 1000, 1)


def _static_us(static: list[Runtime]) -> Callable[[int], float]:
    ends, times = [runtime.max_length for runtime in static], [_row_us(runtime) for runtime in static]
    return lambda length: times[bisect.bisect_left(ends, length)]


def _dynamic_us(runtime: Runtime) -> Callable[[int], float]:
    return lambda length: curve(runtime, length).batch_ms(1) * 1000


def _constant(value: float) -> Callable[[int], float]:
    return lambda _: value


def _why(serve: str, rival: str, mean_us: dict[str, float], lengths: str) -> str:
    static, other, padded = (mean_us[kind] / 1000 for kind in ("static", rival, "padded"))
    name = "the dynamic runtime" if rival == "dynamic" else "one engine with several profiles"
    figures = (
        f"over {lengths}, a row takes {_digits(static)} ms on static runtimes, {_digits(other)} ms on {name} and "
        f"{_digits(padded)} ms padded to the longest"
    )
    saved = 1 - static / other
    if serve == "static":
        return f"{figures}: a runtime per length saves {saved:.0%}"
    if saved < 0:
        return f"{figures}: a runtime per length would take {-saved:.0%} longer"
    return f"{figures}: a runtime per length would save {saved:.0%}, less than the {LEAST_SAVED:.0%} that make it pay"


def _digits(value: float) -> str:
    """Three significant digits, never as a power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _doubt(compared: tuple[Compared, ...]) -> str:
    """A warning if the figures cannot be those of a quiet machine; empty otherwise."""
    odd = [
        row
        for row in compared
        if row.static_us is not None and row.dynamic_us is not None and row.dynamic_us < DISTURBED * row.static_us
    ]
    if not odd:
        return ""
    return (
        f". But the static runtime for {odd[0].length} tokens was measured far slower than the dynamic one, a sign of "
        "other work on the machine: measure again when it is quiet"
    )


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
