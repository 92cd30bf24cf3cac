"""Fig. 2: latency of static, dynamic-shape and padded runtimes over the length, per profile.

    python -m benchmarks.figures.fig02_latency             the latency facts of the paper beside ours, and the plot
    python -m benchmarks.figures.fig02_latency --implied   what each model of dynamic shapes, and each absolute scale
                                                           of BERT-large, implies for the paper's comparisons

Written: benchmarks/results/fig02_latency.json, reports/fig02_latency.html.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.report import figure as frame
from arlo.report import page
from arlo.simulator.profiles import Profile, dynamic_variants, load_profile, profile_names
from arlo.simulator.profiles.estimated import SCALES, large_512_ms
from arlo.traces.generate import PAPER_LONGEST, rescale

PROFILES = ("bert-base", "bert-large", "bert-base-t4-fp16", "bert-large-t4-fp16")
VARIANTS = ("added", "published", "falling", "flat", "least", "rising")
OVERHEAD_MS = 0.8  # section 5.2.1
# Comparisons with a stated load: profile, requests per second, GPUs, reduction of the mean against ST and DT.
LOADS = (
    ("bert-base", "Stable", 1_000, 10, 0.703, 0.237),
    ("bert-base", "Bursty", 8_000, 90, 0.703, 0.241),
    ("bert-large", "Stable", 1_500, 10, 0.667, 0.292),
    ("bert-large", "Bursty", 25_000, 300, 0.981, 0.307),
)
COLOURS = {
    "static": frame.GREEN, "padded": frame.INK, "added": frame.ORANGE, "published": frame.PINK,
    "falling": frame.VIOLET, "flat": frame.GOLD, "least": frame.OLIVE, "rising": frame.RED,
}  # fmt: skip


def paper_lengths(max_length: int = 512) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Tokens and their probabilities: the paper's tweets as a lognormal with median 21 and 98th percentile 72, cut at
    125 tokens, rescaled to `max_length` (sections 2.1 and 5)."""
    sigma = math.log(72 / 21) / statistics.NormalDist().inv_cdf(0.98)
    normal = statistics.NormalDist(math.log(21), sigma)
    edges = np.array([normal.cdf(math.log(k + 0.5)) for k in range(PAPER_LONGEST + 1)])
    share = np.diff(edges)
    return rescale(np.arange(1, PAPER_LONGEST + 1, dtype=np.int32), max_length), share / share.sum()


def rows() -> list[dict[str, Any]]:
    """The paper's latency facts beside those of our profiles."""
    base, large = load_profile("bert-base"), load_profile("bert-large")
    falling = load_profile("bert-base", dynamic="falling")
    inside = max(base.static_ms(edge) / base.static_ms(edge - 63) - 1 for edge in range(64, 513, 64))
    tweets = np.arange(1, PAPER_LONGEST + 1)
    waste = 1 - float(tweets @ paper_lengths()[1]) / PAPER_LONGEST

    def row(quantity: str, paper: str, ours: str, note: str) -> dict[str, Any]:
        return {"experiment": "Fig. 2", "quantity": quantity, "paper": paper, "ours": ours, "note": note}

    def range_of(profile: Profile) -> str:
        low, high = inflation_range(profile)
        return f"{low:.2f}x to {high:.2f}x"

    input_of_profile = "input of the profile, not a finding"
    return [
        row("BERT-base, 512 tokens", "4.86 ms", f"{base.static_ms(512):.2f} ms", input_of_profile),
        row("BERT-base, 512 over 64 tokens", "4.22x", f"{span(base):.2f}x", input_of_profile),
        row("BERT-large, 512 over 64 tokens", "5.25x", f"{span(large):.2f}x", input_of_profile),
        row(
            "BERT-base, 20 tokens padded to 512",
            "4.28x",
            f"{base.static_ms(512) / base.static_ms(20):.2f}x",
            "sets the slope inside the steps",
        ),
        row("rise inside a step of 64, largest", "< 5 %", f"{inside:.1%}", "follows from 4.28x and 4.22x"),
        row(
            "dynamic over static, default model",
            "1.22x to 3.56x",
            range_of(base),
            "'added': where the paper's extremes lie is not said; no mechanism gives both (docs/latency-profiles.md)",
        ),
        row("dynamic over static, model 'falling'", "1.22x to 3.56x", range_of(falling), "both extremes, at the ends"),
        row(
            "FLOPs wasted when padded to 125",
            "80.6 %",
            f"{waste:.1%}",
            "a clip of the paper's trace; ours: padding tokens of the lognormal with its median and p98",
        ),
    ]


def span(profile: Profile) -> float:
    """Static latency at 512 over that at 64 tokens."""
    return profile.static_ms(512) / profile.static_ms(64)


def inflation_range(profile: Profile) -> tuple[float, float]:
    """Least and largest dynamic over static latency at one length."""
    factors = [profile.dynamic_ms(n) / profile.static_ms(n) for n in range(1, profile.max_length + 1)]
    return min(factors), max(factors)


def means(profile: Profile) -> dict[str, tuple[float, float]]:
    """Mean and second moment of the execution time over the paper's lengths, ms: ST, DT, and each request on its ideal
    one of eight runtimes."""
    lengths, share = paper_lengths(profile.max_length)
    ideal = np.array([profile.static_ms(min(512, math.ceil(n / 64) * 64)) for n in lengths.tolist()])
    dynamic = np.array([profile.dynamic_ms(n) for n in lengths.tolist()])
    longest = np.full(len(lengths), profile.static_ms(profile.max_length))
    times = {"st": longest, "dt": dynamic, "ideal": ideal}
    return {name: (float(share @ ms), float(share @ ms**2)) for name, ms in times.items()}


def mean_latency(moments: tuple[float, float], rate: float, workers: int) -> float:
    """Mean latency in ms of `workers` equal servers with one queue and Poisson arrivals (M/G/c by the approximation of
    Lee and Longton), with the overhead; infinite from full load on."""
    mean, second = moments
    offered = rate * mean / 1000
    busy = offered / workers
    if busy >= 1:
        return math.inf
    blocked = 1.0  # Erlang B, then C
    for n in range(1, workers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    waits = blocked / (1 - busy * (1 - blocked))
    return mean + OVERHEAD_MS + waits * (second / mean**2) / 2 * mean / (workers * (1 - busy))


def implied() -> list[dict[str, Any]]:
    """Per comparison, scale and model: utilization, and the reduction if Arlo never waited nor padded beyond its bins.

    An upper bound for Poisson arrivals: the real Arlo waits too. Infinite latencies give a reduction of 1.
    """
    found = []
    for name, pattern, rate, workers, against_st, against_dt in LOADS:
        for scale in [None] if name == "bert-base" else list(SCALES):
            for variant in VARIANTS:
                profile = load_profile(name, dynamic=variant, scale=scale)
                moments = means(profile)
                ideal = moments["ideal"][0] + OVERHEAD_MS
                use = {kind: rate * mean / 1000 / workers for kind, (mean, _) in moments.items()}
                found.append(
                    {
                        "profile": name,
                        "load": f"{pattern} {rate} req/s, {workers} GPUs",
                        "scale": scale or "",
                        "model": variant,
                        "mean_ms": {kind: mean for kind, (mean, _) in moments.items()},
                        "utilization": use,
                        "dt_no_wait": 1 - ideal / (moments["dt"][0] + OVERHEAD_MS),
                        "against_st": 1 - ideal / mean_latency(moments["st"], rate, workers),
                        "against_dt": 1 - ideal / mean_latency(moments["dt"], rate, workers),
                        "paper_st": against_st,
                        "paper_dt": against_dt,
                    }
                )
    return found


def large_limits() -> list[tuple[str, float, float]]:
    """What the paper's BERT-large comparisons say of L(512), its latency at 512 tokens: statement, from ms, to ms."""
    share = {v: means(load_profile("bert-large", dynamic=v, scale=1.0)) for v in VARIANTS}
    least = large_for_reduction(0.667, 1_500, 10)
    limits = [
        ("Stable 1.5k req/s, 10 GPUs: ST keeps up", 0.0, 1000 / 150),
        ("Stable 1.5k req/s, 10 GPUs: an Arlo that never waits is 66.7 % below ST", least, 1000 / 150),
        ("Bursty 25k req/s, 300 GPUs: ST collapses (mean -98.1 %)", 1000 / (25_000 / 300), math.inf),
        ("Bursty 25k req/s, 300 GPUs: each request on its ideal runtime fits", 0.0, 12.0 / share["added"]["ideal"][0]),
    ]
    for variant in VARIANTS:
        dt = share[variant]["dt"][0]
        limits.append((f"Bursty 25k req/s, 300 GPUs: DT keeps up, model '{variant}'", 0.0, 12.0 / dt))
        limits.append((f"Stable 1.5k req/s, 10 GPUs: DT keeps up, model '{variant}'", 0.0, 1000 / 150 / dt))
    return limits


def large_for_reduction(reduction: float, rate: float, workers: int) -> float:
    """The least L(512) in ms with which an Arlo that never waits is better than ST by `reduction`. Between it and full
    load ST waits longer, so there it is better still; an Arlo that waits needs more."""
    low, high = 0.0, 1000 * workers / rate
    for _ in range(60):
        middle = (low + high) / 2
        moments = means(load_profile("bert-large", scale=middle))
        ideal = moments["ideal"][0] + OVERHEAD_MS
        if 1 - ideal / mean_latency(moments["st"], rate, workers) < reduction:
            low = middle
        else:
            high = middle
    return high


def figure(profiles: Sequence[str] = PROFILES, variants: Sequence[str] = VARIANTS) -> Any:
    """The plotly figure: a panel per profile, milliseconds over tokens."""
    from plotly.subplots import make_subplots

    columns = 2
    titles = [f"{name} ({load_profile(name).kind})" for name in profiles]
    picture = make_subplots(
        rows=math.ceil(len(profiles) / columns), cols=columns, subplot_titles=titles, horizontal_spacing=0.08,
        vertical_spacing=0.12,
    )  # fmt: skip
    seen: set[str] = set()

    def line(panel: int, name: str, at: Sequence[int], ms: Sequence[float], dash: str = "solid") -> None:
        picture.add_scatter(
            x=list(at), y=list(ms), name=name, legendgroup=name, showlegend=name not in seen, mode="lines",
            line={"color": COLOURS[name.removeprefix("dynamic, ")], "dash": dash}, row=panel // columns + 1,
            col=panel % columns + 1,
        )  # fmt: skip
        seen.add(name)

    for panel, name in enumerate(profiles):
        profile = load_profile(name)
        tokens = range(1, profile.max_length + 1)
        line(panel, "padded", [1, profile.max_length], [profile.static_ms(profile.max_length)] * 2, "dash")
        line(panel, "static", tokens, [profile.static_ms(n) for n in tokens])
        for variant in variants:
            model = load_profile(name, dynamic=variant)
            line(panel, f"dynamic, {variant}", tokens, [model.dynamic_ms(n) for n in tokens], "dot")
        top = 2.0 * profile.static_ms(profile.max_length)  # 'rising' goes far beyond
        picture.update_yaxes(range=[0, top], title_text="ms", row=panel // columns + 1, col=panel % columns + 1)
        picture.update_xaxes(
            title_text="tokens", tickvals=list(range(0, profile.max_length + 1, 64)), row=panel // columns + 1,
            col=panel % columns + 1,
        )  # fmt: skip
    return frame.framed(
        picture,
        "Fig. 2: latency over the length, batch 1",
        height=420 * math.ceil(len(profiles) / columns),
        legend_title_text="runtime",
    )


def print_rows(found: Sequence[dict[str, Any]]) -> None:
    """ours / paper as a table."""
    for row in found:
        print(f"{row['quantity']:38} paper {row['paper']:16} ours {row['ours']:16} {row['note']}")


def print_implied() -> None:
    """implied() and large_limits() as Markdown tables."""

    def bound(reduction: float) -> str:
        return "overloaded" if reduction == 1 else f"{-reduction:.1%}"

    print("| profile, load | scale | model | ST ms | DT ms | ideal ms | ST busy | DT busy | ideal busy "
          "| DT, no waiting | vs DT at most | paper | vs ST at most | paper |")  # fmt: skip
    print("|" + "---|" * 14)
    for row in implied():
        ms, use = row["mean_ms"], row["utilization"]
        print(
            f"| {row['profile']}, {row['load']} | {row['scale']} | {row['model']} | {ms['st']:.2f} | {ms['dt']:.2f} | "
            f"{ms['ideal']:.2f} | {use['st']:.2f} | {use['dt']:.2f} | {use['ideal']:.2f} | {-row['dt_no_wait']:.1%} | "
            f"{bound(row['against_dt'])} | {-row['paper_dt']:.1%} | "
            f"{bound(row['against_st'])} | {-row['paper_st']:.1%} |"
        )
    print("\n| BERT-large, what the paper's loads ask of L(512) | from, ms | to, ms |\n|---|---|---|")
    for text, low, high in large_limits():
        print(f"| {text} | {low:.2f} | {high:.2f} |")
    print("\n| BERT-large, scale | L(64), ms | L(512), ms |\n|---|---|---|")
    for name in SCALES:
        print(f"| {name} | {large_512_ms(name) / 5.25:.2f} | {large_512_ms(name):.2f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--implied", action="store_true", help="print what the models imply, instead of the figure")
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES), choices=profile_names(), metavar="NAME")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=dynamic_variants(), metavar="NAME")
    args = parser.parse_args()
    if args.implied:
        print_implied()
        return 0
    from benchmarks import harness

    found = rows()
    print_rows(found)
    command = " ".join(["python -m benchmarks.figures.fig02_latency", *sys.argv[1:]])
    curves = {
        name: {
            "static_ms": [round(load_profile(name).static_ms(n), 4) for n in range(64, 513, 64)],
            "dynamic_ms": [round(load_profile(name).dynamic_ms(n), 4) for n in range(64, 513, 64)],
        }
        for name in args.profiles
    }
    path = harness.save("fig02_latency", command, {"rows": found, "lengths": list(range(64, 513, 64)), **curves})
    written = Path("reports/fig02_latency.html")
    page.write(written, page.render("Fig. 2 of the paper", [page.plots([figure(args.profiles, args.variants)])]))
    print(f"-> {path}, {written}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
