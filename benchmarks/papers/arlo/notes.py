"""Explanations that are computed: what the stated facts leave room for, and where a load lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arlo.simulator.report.result import Result
from benchmarks.papers.arlo.cells import Cluster
from benchmarks.papers.arlo.compare import QUEUEING, WEAK, Results, against, ms
from benchmarks.papers.arlo.experiment import Parameter

COMMON = (
    Parameter(name="overhead", value="0.8 ms per request", source="paper, 5.2.1"),
    Parameter(name="request scheduler", value="lambda 0.85, alpha 0.9, L 6", source="paper, 5 (parameter settings)"),
    Parameter(name="runtimes, period", value="8 in steps of 64 tokens; 120 s; batch 1", source="paper, 5 and 3.3"),
    Parameter(name="SLO", value="150 ms (BERT-base), 450 ms (BERT-large)", source="paper, 5"),
    Parameter(
        name="BERT-base latency",
        value="1.15 ms at 64 to 4.86 ms at 512 tokens, steps of 64 on a line",
        source="4.86 ms and 4.22x: paper, 2.1 and 2.2; the line between them: assumed",
    ),
    Parameter(
        name="BERT-large latency",
        value="2.56 ms at 64 to 13.45 ms at 512 tokens",
        source="5.25x: paper, 2.1; its absolute value is not stated: 2.72 times BERT-base at 384 tokens, the median of "
        "NVIDIA's published TensorRT tables",
    ),
    Parameter(
        name="dynamic shapes",
        value="'added': 1.07 ms (BERT-base) at every length, 1.22x at 512 and 1.9x at 64 tokens",
        source="1.22x to 3.56x: paper, 2.2, without saying where; see the sensitivity",
    ),
    Parameter(
        name="lengths",
        value="lognormal, median 21, p98 72, at most 125 tokens, times 512/125",
        source="quantiles: paper, 2.1; rescaling: paper, 5; the form between the quantiles: assumed",
    ),
    Parameter(
        name="drift of lengths",
        value="log-spread, standard deviation 0.21 over 10 s",
        source="from p98 58 in a 10-s clip against 71 (paper, 3.2); one clip, part of it chance: see the sensitivity",
    ),
    Parameter(
        name="bursts",
        value="busy 3 times as fast as quiet, mean sojourns 100 ms, inside each second",
        source="Markov-modulated: paper, 5; its parameters are not stated",
    ),
    Parameter(name="rate over time", value="constant mean", source="the paper's mean; see Twitter's windows below"),
    Parameter(
        name="ST, DT",
        value="least loaded instance",
        source="'load balancing': paper, 5; which one is not said. By count it waits 9 to 104 % longer than M/D/c",
    ),
    Parameter(
        name="INFaaS",
        value="as many instances of each runtime; packs up to one batch (1) on an instance, short variants first",
        source="'bin-packing dispatching scheme': paper, 5; neither allocation nor limit is stated",
    ),
    Parameter(name="initial allocation", value="solved for the first period's demand", source="not stated; see 'even'"),
    Parameter(
        name="trace length", value="10 minutes", source="the paper's traces are of 5 to 10 minutes, 2.1 and 5.2.1"
    ),
    Parameter(name="replacement", value="1 s per instance, a tenth of them at a time", source="1 s: paper, 4"),
)


def bound(label: str, cluster: Cluster) -> str:
    """What a scheduler could do at best where no request waits."""
    profile = cluster.profile()
    static, dynamic = cluster.ideal_ms()
    longest, over = profile.static_ms(profile.max_length), cluster.overhead_ms
    st = 100 * (1 - (static + over) / (longest + over))
    dt = 100 * (1 - (static + over) / (dynamic + over))
    return (
        f"{label}: a request takes {longest:.2f} ms in ST, {dynamic:.2f} ms in DT and {static:.2f} ms on its ideal "
        f"runtime on average, plus {over:g} ms. Where no request waits, no scheduler can be more than {st:.1f} % below "
        f"ST or {dt:.1f} % below DT in mean. At {cluster.rate:,.0f} requests per second on {cluster.workers} GPUs "
        f"ST is busy {100 * cluster.busy(longest):.0f} % of the time, DT {100 * cluster.busy(dynamic):.0f} %, ideal "
        f"runtimes {100 * cluster.busy(static):.0f} %."
    )


def two_loads(stable: Cluster, collapsed: Cluster) -> str:
    """What the paper's two loads of BERT-large say about a latency that it does not state."""
    at_most, at_least = (1000 * c.workers / c.rate for c in (stable, collapsed))
    ours = stable.profile().static_ms(512)
    return (
        f"The paper does not state BERT-large's latency, and its two loads say different things of it. At "
        f"{stable.rate:,.0f} requests per second on {stable.workers} GPUs ST is only three times as slow as Arlo, so "
        f"it is not overloaded: a request takes less than {at_most:.2f} ms. At {collapsed.rate:,.0f} on "
        f"{collapsed.workers} GPUs ST is fifty times as slow, as if it were overloaded: at a constant mean rate a "
        f"request then takes about {at_least:.0f} ms or more. Both hold only if the load is far above its mean for "
        f"many seconds on end. Here it takes {ours:.2f} ms, so ST is overloaded at both. FP32 work grows 3.47 times "
        f"from BERT-base to BERT-large, to 16.9 ms; below 6.67 ms it would be 1.4 times."
    )


def tail(label: str, results: Results) -> str:
    """Where Arlo's p98 comes from: runtimes that its allocation left out."""
    arlo = results["paper"]
    unused = [str(runtime["max_length"]) for runtime in arlo.runtimes if not runtime["served"]]
    if not unused:
        return ""
    top = arlo.runtimes[-1]
    share = 100 * top["served"] / sum(runtime["served"] for runtime in arlo.runtimes)
    return (
        f" {label}: Eq. 1 gives no instance to {', '.join(unused)} tokens, so {share:.1f} % of the requests run at "
        f"{top['max_length']} tokens, which is Arlo's p98."
    )


def starved(other: str, results: Results, assumed: Mapping[str, Results]) -> str:
    """That Arlo's own waiting is what Eq. 1 makes of the longest requests, and what the reduction is without it."""
    arlo = results["paper"]
    if arlo.mean_wait_ms < 0.5 * arlo.mean_execution_ms:
        return ""
    names = {
        "no drift of lengths": "without drift of lengths",
        WEAK: "with the drift that was measured on tweets",
        QUEUEING: "with the queueing objective",
    }
    instead = [f"{against(assumed[name], other):.1f} % {what}" for name, what in names.items() if name in assumed]
    without = f" Shorter runs: {', '.join(instead)}." if instead else ""
    first, last = (_instances(arlo, runtime) for runtime in (arlo.runtimes[0], arlo.runtimes[-1]))
    return (
        f" Half of Arlo's requests are done in {ms(arlo.p50_ms)} ms; its mean is made by the "
        f"{100 * (1 - arlo.slo_attainment):.2f} % that are late, all of the longest: Eq. 1 gives the shortest runtime "
        f"{first[0]:.0f} instances for work that fills {first[1]:.1f}, and the longest {last[0]:.0f} for "
        f"{last[1]:.2f}, which is too few whenever lengths drift for some seconds.{without}"
    )


def _instances(result: Result, runtime: Mapping[str, Any]) -> tuple[float, float]:
    """Instances of a runtime, mean over time, and how many its work would fill."""
    timeline = result.timeline
    inside = timeline["time_s"] <= result.duration_s
    mean = float(timeline[f"instances.{runtime['name']}"][inside].mean())
    return mean, runtime["busy_s"] / result.duration_s


def explain(cluster: Cluster, other: str, results: Results, assumed: Mapping[str, Results]) -> str:
    """Why a reduction of the mean is what it is."""
    profile = cluster.profile()
    static, dynamic = cluster.ideal_ms()
    over = cluster.overhead_ms
    arlo, its = results["paper"], results[other]
    means = (
        f"{ms(arlo.mean_ms)} against {ms(its.mean_ms)} ms (executing {ms(arlo.mean_execution_ms)} and "
        f"{ms(its.mean_execution_ms)}, waiting {ms(arlo.mean_wait_ms)} and {ms(its.mean_wait_ms)})."
        f"{starved(other, results, assumed)}"
    )
    if other == "infaas":
        read = {name: against(r, other) for name, r in assumed.items() if name.startswith("INFaaS: ")}
        ends = [f"{read[name]:.1f} % ({name.removeprefix('INFaaS: ')})" for name in sorted(read, key=lambda n: read[n])]
        spans = f" Other readings: {ends[0]} to {ends[-1]}." if ends else ""
        return (
            f"{means} The paper says of INFaaS only that it packs and does not look at lengths. Here: as many "
            f"instances of each runtime, the shortest idle one that fits, else the one with the fewest requests.{spans}"
        )
    service = profile.static_ms(profile.max_length) if other == "st" else dynamic
    busy = cluster.busy(service)
    least = 100 * (1 - (static + over) / (service + over))
    if busy >= 1:
        stable = f"{1000 * cluster.workers / cluster.rate:.2f} ms"
        six = assumed.get("BERT-large takes 6 ms at 512 tokens")
        at_six = f" With 6 ms at 512 tokens the reduction is {against(six, other):.1f} %." if six else ""
        what = "a request" if other == "st" else "the mean request"
        return (
            f"{means} {other.upper()} needs {100 * busy:.0f} % of the GPUs here and its queue grows as long as the "
            f"run lasts. For it to be stable {what} must take less than {stable}; we take {service:.2f} ms. The paper "
            f"states no absolute latency of BERT-large.{at_six}"
        )
    dealt = assumed.get("ST and DT deal requests at random")
    random = f" Dealt at random instead of to the least loaded: {against(dealt, other):.1f} %." if dealt else ""
    return (
        f"{means} {other.upper()} is {100 * busy:.0f} % busy, and where no request waits no scheduler can be more than "
        f"{least:.1f} % below it with these latencies and lengths.{random}"
    )
