"""OTAS's figures next to ours, simulated: utility by policy and load, outcomes, accuracy of batches, token counts.

    python -m benchmarks.papers.otas.figures [--seconds 600] [--out benchmarks/results/otas.json]

Everything is simulated from examples/simulate/otas.toml, whose accuracies are assumed and whose throughput is a guess
of 480 queries a second; --capacities varies that guess, on which the gain over PetS depends. The synthetic stream is
that of the paper's section V: every second Poisson with a rate of 200 to 700 queries a second. PetS is fixed:0, ToMe
fixed:-15 (the paper does not say which), VPT fixed:2; INFaaS picks one of three vision transformers by the rate, and
loading one takes a second. The paper's other trace is Azure Functions 2021, two minutes in one second. If ARLO_TRACES
names its folder, the 2019 day replaces it, a minute in one second, scaled so that the rate is below 300 queries a
second 60 % of the time, as in the paper.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.schedule import multiplications
from arlo.simulator.report.result import Figures
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Listed
from arlo.simulator.tokens.file import TokenSpec, TokenVariant, load_tokens
from arlo.simulator.tokens.served import kinds_of, scenario_of
from arlo.traces.readers import read_counts
from benchmarks.papers.otas import as_printed

EXAMPLE = Path("examples/simulate/otas.toml")
CAPACITY = 480.0  # of the example at 0
SHOWN = 430.0  # the capacity whose figures are compared with the paper's one by one
SCHEMES = {"price": "price", "PetS": "fixed:0", "ToMe": "fixed:-15", "VPT": "fixed:2"}
LOADS = (0.3, 0.5, 0.7, 0.9, 1.0, 1.05, 1.1, 1.3, 1.5)
PAPER = {
    "fig9a_utility": 1.46e5, "fig9a_over_pets": 0.182, "fig9a_over_infaas": 0.725, "fig13a_type1": 0.8554,
    "fig11a_mean_accuracy_above": 0.9, "fig12a_most_chosen": [8, -15], "fig9b_up_to": 0.901, "fig13b_type1": 0.7558,
    "fig13b_tome_wrong": 0.1685, "fig13b_vpt_type1": 0.6414,
}  # fmt: skip
TYPES_OF = {  # what the paper says of each scheme on the synthetic stream, and on the other trace
    "OTAS as printed": ("85.5 % right, none late", "75.6 % right"),
    "price": ("-", "-"),
    "PetS": ("not said", "not said"),
    "INFaaS": ("not said", "not said"),
    "ToMe": ("not said", "16.9 % wrong"),
    "VPT": ("not said", "64.1 % right"),
}
BELOW_300 = 0.6  # share of the time of the paper's trace
# ViT-S, -B, -L: throughput relative to B's by multiply-adds, 4.6, 17.6 and 61.6 thousand millions; accuracies assumed.
MODELS = {
    "speed": (3.83, 1.0, 0.286),
    "cifar10": (0.93, 0.95, 0.965),
    "cifar100": (0.79, 0.832, 0.86),
    "eurosat": (0.94, 0.96, 0.97),
}


def speed(count: int) -> float:
    """Throughput of ViT-B/16 at a token count over that with all 197 tokens, by the layers' multiplications."""
    return multiplications(197, 12, 0, width=768) / multiplications(197, 12, count, width=768)


def at_capacity(spec: TokenSpec, capacity: float) -> TokenSpec:
    """The same body on a device that carries `capacity` queries a second with all tokens."""
    factor = CAPACITY / capacity
    variants = tuple(
        dataclasses.replace(each, latency=tuple((rows, ms * factor) for rows, ms in each.latency))
        for each in spec.variants
    )
    return dataclasses.replace(spec, variants=variants)


def models(spec: TokenSpec) -> TokenSpec:
    """Three models in place of token counts."""
    base = spec.variants[spec.tokens.index(0)].latency
    order = range(3)
    return dataclasses.replace(
        spec,
        variants=tuple(
            TokenVariant(tokens=at, latency=tuple((rows, ms / MODELS["speed"][at]) for rows, ms in base))
            for at in order
        ),
        accuracy={task: MODELS[task] for task in spec.accuracy},
    )


def synthetic(seconds: int, seed: int) -> NDArray[np.int64]:
    """Arrivals in ns: each second at a rate drawn from 200 to 700 a second."""
    random = np.random.default_rng(seed)
    return per_second(random.uniform(200, 700, seconds), random)


def per_second(rates: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.int64]:
    """Arrivals in ns of one second after another, each Poisson at its rate."""
    counts = random.poisson(rates)
    second = np.repeat(np.arange(len(rates)), counts)
    return np.sort(np.round((second + random.random(len(second))) * 1e9).astype(np.int64))


def poisson(rate: float, seconds: int, seed: int) -> NDArray[np.int64]:
    """Arrivals in ns at one rate."""
    random = np.random.default_rng(seed)
    return np.sort((random.random(random.poisson(rate * seconds)) * seconds * 1e9).astype(np.int64))


def serve(spec: TokenSpec, policy: str, arrived: NDArray[np.int64], seed: int = 0) -> Figures:
    """Figures of queries with these arrivals and random kinds."""
    return run(scenario_of(spec, policy, Listed(arrived), seed=seed)).figures


def utility(figures: Figures) -> float:
    """Utility that the queries earned."""
    assert figures.utility is not None
    return figures.utility


def schemes(spec: TokenSpec, arrived: NDArray[np.int64]) -> dict[str, Figures]:
    """All schemes on one stream."""
    kind = kinds_of(spec, 0)(len(arrived))
    found = {"OTAS as printed": as_printed.otas(spec, arrived, kind)}
    found |= {name: serve(spec, policy, arrived) for name, policy in SCHEMES.items()}
    carried = 0.9 * spec.capacity(0)  # by the middle model
    table = ((carried * MODELS["speed"][2], 2), (carried, 1))
    return found | {"INFaaS": as_printed.infaas(models(spec), arrived, kind, table)}


def figures(spec: TokenSpec, found: dict[str, Figures], capacity: float) -> list[tuple[str, str, str, str]]:
    """(figure, what, paper, ours) of each figure of section V on the synthetic stream, at one capacity. Ours are
    simulated; 4a and 7 are assumed after the paper's own, 4b is by the layers' multiplications."""
    fifteen = spec.variants[spec.tokens.index(-15)].latency
    rate = {rows: 1000 * rows / ms for rows, ms in fifteen}
    right = {tokens: f"{share:.0%}" for tokens, share in zip(spec.tokens, spec.accuracy["cifar10"], strict=True)}
    return [
        ("4a", "CIFAR10 right at 8, 2, 0, -15, -20", "rises sharply at 2; falls slightly to -15, then to 50 %",
         ", ".join(right[tokens] for tokens in (8, 2, 0, -15, -20)) + " (assumed)"),
        ("4b", "queries/s at -25, 0, 32; of those at 0", "1,500, 580, 220; 2.59, 1, 0.38",
         ", ".join(f"{capacity * speed(tokens):,.0f}" for tokens in (-25, 0, 32))
         + "; " + ", ".join(f"{speed(tokens):.2f}" for tokens in (-25, 0, 32))),
        ("7", "queries/s at -15, batches of 1, 20, 64", "100, 1,000, flat after",
         ", ".join(f"{rate[rows]:,.0f}" for rows in sorted(rate)) + " (assumed)"),
        *beside(found, "a", ("+18.2 %", "+72.5 %", "above 90 %; VPT highest", "8, -15")),
        ("9a", "utility of PetS (ours: of our stream)", "1.235e5", f"{utility(found['PetS']):,.0f}"),
    ]  # fmt: skip


def beside(found: dict[str, Figures], trace: str, said: tuple[str, str, str, str]) -> list[tuple[str, str, str, str]]:
    """Figures 9 to 13 of one trace, `a` or `b`. `said` by the paper: over PetS, over INFaaS, accuracy, counts."""
    printed, price = found["OTAS as printed"], found["price"]

    def over(name: str) -> str:
        return f"{utility(printed) / utility(found[name]) - 1:+.1%}, {utility(price) / utility(found[name]) - 1:+.1%}"

    def types(name: str) -> str:
        return " / ".join(f"{share:.1%}" for share in found[name].more["types"].values())

    def most(name: str) -> str:
        return ", ".join(
            tokens for tokens, _ in sorted(found[name].more["batches"].items(), key=lambda item: -item[1])[:2]
        )

    def mean(name: str) -> str:
        return f"{_figures(found[name])['batch_accuracy_mean']:.1%}"

    return [
        (f"9{trace}", "utility over PetS: printed, price", said[0], over("PetS")),
        (f"9{trace}", "utility over INFaaS", said[1], over("INFaaS")),
        (f"10{trace}", "utility over ToMe (-15 always)", "above", over("ToMe")),
        (f"10{trace}", "utility over VPT (2 always)", "above", over("VPT")),
        (f"11{trace}", "mean accuracy of a batch: printed, price, VPT, PetS, ToMe", said[2],
         ", ".join(map(mean, ("OTAS as printed", "price", "VPT", "PetS", "ToMe")))),
        (f"12{trace}", "most frequent counts: printed; price", said[3], f"{most('OTAS as printed')}; {most('price')}"),
        *((f"13{trace}", f"right / wrong / late / evicted: {name}", of[trace == "b"], types(name))
          for name, of in TYPES_OF.items()),
    ]  # fmt: skip


def functions(seed: int, seconds: int | None = None) -> NDArray[np.int64] | None:
    """Arrivals in ns of the day of Azure Functions 2019, a minute in one second; None where ARLO_TRACES is not set."""
    if (folder := os.environ.get("ARLO_TRACES")) is None:
        return None
    counts = read_counts(Path(folder) / "maf2019" / "inv_1350func_1440min_total_per_minute.csv")
    per_minute = np.asarray(counts.count, float)[:seconds]
    return per_second(per_minute * 300 / np.quantile(per_minute, BELOW_300), np.random.default_rng(seed))


def best_fixed(spec: TokenSpec, arrived: NDArray[np.int64], seed: int) -> tuple[int, float]:
    """The token count that does best alone, and its utility."""
    each = {tokens: utility(serve(spec, f"fixed:{tokens}", arrived, seed)) for tokens in spec.tokens}
    best = max(each, key=lambda tokens: each[tokens])
    return best, each[best]


def curve(spec: TokenSpec, loads: tuple[float, ...], seconds: int) -> list[dict[str, Any]]:
    """Utility of the policies at loads that are shares of what all tokens carry."""
    found = []
    for load in loads:
        arrived = poisson(load * spec.capacity(0), seconds, 1)
        tokens, best = best_fixed(spec, arrived, 1)
        plain = utility(serve(spec, "fixed:0", arrived, 1))
        row = {name: utility(serve(spec, name, arrived, 1)) for name in ("printed", "price")}
        found.append({"load": load, "fixed_0": plain, "best_fixed": best, "best_tokens": tokens, **row})
    return found


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="of the synthetic stream (the paper: 1,800)")
    parser.add_argument("--capacities", type=float, nargs="+", default=[400, 430, 460, 490, 520, 580])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/otas.json"))
    args = parser.parse_args()
    spec = load_tokens(EXAMPLE)
    result: dict[str, Any] = {"paper": PAPER, "seconds": args.seconds, "by_capacity": {}}
    for capacity in args.capacities:
        found = schemes(at_capacity(spec, capacity), synthetic(args.seconds, 0))
        result["by_capacity"][f"{capacity:g}"] = {name: _figures(each) for name, each in found.items()}
        _print(capacity, found)
        if capacity == SHOWN:
            result["figures"] = figures(at_capacity(spec, capacity), found, capacity)
            if (arrived := functions(0)) is not None:
                other = schemes(at_capacity(spec, capacity), arrived)
                result["azure_2019"] = {name: _figures(each) for name, each in other.items()}
                result["figures"] += beside(other, "b", ("up to +90.1 %", "up to +90.1 %", "not said", "not said"))
    result["by_load"] = curve(spec, LOADS, max(60, args.seconds // 5))
    print("\nload  fixed:0  best fixed      printed    price   price/fixed:0  price/best")
    for row in result["by_load"]:
        print(
            f"{row['load']:4.2f}  {row['fixed_0']:7,.0f}  {row['best_fixed']:7,.0f} ({row['best_tokens']:3})  "
            f"{row['printed']:7,.0f}  {row['price']:7,.0f}   "
            f"{row['price'] / row['fixed_0']:13.3f}  {row['price'] / row['best_fixed']:10.3f}"
        )
    print(f"\nfigures beside the paper's, {SHOWN:g} queries/s with all tokens")
    for row in result.get("figures", ()):
        print("  " + " | ".join(row))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


def _figures(each: Figures) -> dict[str, Any]:
    shares = np.repeat(np.arange(101), each.more["batch_accuracy"])
    return {
        "utility": utility(each),
        "outcomes": each.more["types"],
        "batch_accuracy_mean": float(shares.mean()) / 100 if len(shares) else None,
        "batch_accuracy_quartiles": [float(q) / 100 for q in np.quantile(shares, (0.25, 0.5, 0.75))],
        "batches": each.more["batches"],
    }


def _print(capacity: float, found: dict[str, Figures]) -> None:
    print(f"\n{capacity:g} queries/s with all tokens")
    pets = utility(found["PetS"])
    for name, each in found.items():
        types = ", ".join(f"{share:.1%} {kind}" for kind, share in each.more["types"].items())
        most = sorted(each.more["batches"].items(), key=lambda item: -item[1])[:2]
        print(
            f"  {name:16} {utility(each):9,.0f} ({utility(each) / pets - 1:+.1%} over PetS)  {types}; "
            f"batches {', '.join(f'{tokens}: {count}' for tokens, count in most)}"
        )


if __name__ == "__main__":
    main()
