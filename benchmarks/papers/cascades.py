"""The cascades of Tabi (EuroSys'23) and HybridServe (ICDCS'25) compared with results from their own numbers here.

    python -m benchmarks.papers.cascades

Tabi: confidences follow its Fig. 8 for SST-2 and MNLI (Eq. 4 acts like a cut at (1 + c) / 2), and the accuracy of rows
above and below the cut follows section 7.3. Its mean of Table 2 is simulated with one worker for each stage and almost
no load, as the paper measures in a closed loop; Table 5 in the same way, with its exits. HybridServe: energy is the sum
of reach times energy, with energy by parameters and by the exits that it prints; replicas by its rule on 12 GPUs.
Nothing is tuned; if two numbers of a paper disagree, both are shown.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.cascade.decide import core_rules
from arlo.cascade.spec import Rule, Rules, hard
from arlo.planning.stages import proportional
from arlo.simulator.cascade.served import Journeys, scenario_of
from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Dispatch, Listed, RuntimeModel
from benchmarks import harness

ROWS = 200_000
# P(confidence > x): section 7.3 and Fig. 8. Right: (first stage, last stage) above the cut at `c`, and below it.
TABI: dict[str, dict[str, Any]] = {
    "SST-2": {
        "above": ((0.875, 0.924), (0.90, 0.89), (0.925, 0.874), (0.975, 0.698)),
        "c": 0.95,
        "right": ((0.977, 0.987), (0.762, 0.914)),
        "ms": (6.0, 22.0),  # Table 1, and the last stage of Table 2
        "words_kept": 0.83,  # Table 3: the last stage is 17 % quicker
        "paper": {"exits": {0.75: 0.924, 0.85: 0.874, 0.95: 0.698}, "accuracy": 0.956, "mean_ms": 13.2},
    },
    "MNLI": {
        "above": ((0.875, 0.594), (0.90, 0.52), (0.925, 0.494), (0.975, 0.16)),
        "c": 0.85,
        "right": ((0.961, 0.968), (0.713, 0.855)),
        "ms": (7.0, 25.8),
        "words_kept": 0.846,
        "paper": {"exits": {0.75: 0.594, 0.85: 0.494, 0.95: 0.16}, "accuracy": 0.904, "mean_ms": 20.3},
    },
}
OVERHEAD_MS = 2.3  # excess of MNLI's mean over the sum of its parts; the paper says at most 5
# Section 7.5: DeBERTa-base between the two of MNLI. Mean, median and p99 of two and of three stages, printed.
THREE = {"ms": (7.0, 20.0, 25.8), "exits": (0.456, 0.368, 0.176)}
PRINTED_THREE = {"mean": 0.084, "median": -0.023, "p99": 0.703}
GPUS = 12  # HybridServe section VI
# Table III: parameters in millions, exits of the accurate point; Table V: mWh a request, DeepSpeed and the cascade.
HYBRIDSERVE: dict[str, dict[str, Any]] = {
    "T5": {"millions": (60, 220, 770, 3000), "exits": (0.0, 0.248, 0.282, 0.47), "mwh": (80, 9)},
    "GPT": {
        "millions": (86, 350, 760, 1300, 2700, 6700),
        "exits": (0.0, 0.0, 0.198, 0.203, 0.0, 0.599),
        "mwh": (130, 72),
    },
    "ViT": {"millions": (12, 45, 86, 307), "exits": (0.596, 0.051, 0.182, 0.171), "mwh": (115, 8)},
}


def drawn(above: tuple[tuple[float, float], ...]) -> NDArray[np.float64]:
    """Confidences of two labels or three with these shares above, evenly between."""
    x, share = zip((0.5, 1.0), *above, (1.0, 0.0), strict=True)
    below = 1 - np.asarray(share)
    return np.interp(np.random.default_rng(0).random(ROWS), below, x)


def tabi(name: str) -> dict[str, Any]:
    """One task: exits by rule, accuracy, mean time."""
    task = TABI[name]
    conf = drawn(task["above"])
    lengths = np.zeros(ROWS, np.int32)
    exits: dict[str, dict[str, float]] = {}
    for c in task["paper"]["exits"]:
        found = {"cut": float((conf >= (1 + c) / 2).mean())}
        for k in (5.0, 10.0, 20.0):
            soft = core_rules(Rules(prices=((Rule(kind="soft", c=c, k=k),),)))
            found[f"k {k:g}"] = float((_core.cascade_decide(soft, 0, conf, lengths)[0] < 0).mean())
        exits[f"{c:g}"] = found
    cut = (1 + task["c"]) / 2
    inside = conf >= cut
    random = np.random.default_rng(1)
    right = [
        np.where(inside, random.random(ROWS) < a, random.random(ROWS) < b) for a, b in zip(*task["right"], strict=True)
    ]
    journeys = Journeys(confidence=np.stack([conf, np.zeros(ROWS)], axis=1), correct=np.stack(right, axis=1))
    ms = (task["ms"][0], task["ms"][1] * task["words_kept"])
    result = alone(ms, journeys, Rules(prices=((hard(cut),),)), random)
    printed, reached = task["paper"]["mean_ms"], 1 - float(inside.mean())
    own_ms = printed - ms[0] - reached * ms[1]
    ends, exit_ms = result.figures.more["exits"], [each["mean"] for each in result.figures.more["exit_ms"]]
    quick, infaas_ms = exit_ms[0] + OVERHEAD_MS, task["ms"][1]
    median = quick if ends[0] > 0.5 else exit_ms[1] + OVERHEAD_MS
    return {
        "exits": exits,
        "accuracy": result.figures.accuracy,
        "mean_ms": result.mean_ms + OVERHEAD_MS,
        "overhead_that_fits_ms": own_ms,
        "reach": reached,
        "reach_that_fits": (printed - OVERHEAD_MS - ms[0]) / ms[1],
        "p25_over_infaas": quick / infaas_ms - 1,
        "median_over_infaas": median / infaas_ms - 1,
        "paper": task["paper"],
    }


def alone(ms: tuple[float, ...], journeys: Journeys, rules: Rules, random: np.random.Generator) -> Result:
    """Rows one at a time, one worker for each stage."""
    stages = [[RuntimeModel(name=f"s{i}", max_length=128, points=((128, 1, each),))] for i, each in enumerate(ms)]
    gaps = random.exponential(200e6 * sum(ms), 50_000)  # a closed loop has no waiting: one in 200 finds another
    rows = Listed(np.cumsum(gaps).astype(np.int64), np.full(len(gaps), 100, np.int32))
    alone = Dispatch(batching="one")
    return run(scenario_of(stages, rules, journeys, rows, workers=(1,) * len(ms), slo_ms=1000.0, dispatch=alone))


def three_stages() -> dict[str, dict[str, float]]:
    """MNLI with a stage more, over two stages: relative change of mean, median and p99."""
    small, middle, large = THREE["ms"]
    kept = TABI["MNLI"]["words_kept"]
    random = np.random.default_rng(2)
    conf = random.random((ROWS, 3))
    two = alone((small, large * kept), _said(conf[:, :2]), Rules(prices=((hard(1 - 0.494),),)), random)
    first, second = THREE["exits"][:2]
    rules = Rules(prices=((hard(1 - first), hard(1 - second / (1 - first))),))
    three = alone((small, middle * kept, large * kept), _said(conf), rules, random)
    found = {
        name: (b + OVERHEAD_MS) / (a + OVERHEAD_MS) - 1
        for name, a, b in (
            ("mean", two.mean_ms, three.mean_ms),
            ("median", _median(two), _median(three)),
            ("p99", two.p99_ms, three.p99_ms),
        )
    }
    return {"found": found, "paper": PRINTED_THREE}


def _said(confidence: NDArray[np.float64]) -> Journeys:
    return Journeys(confidence=confidence, correct=np.ones(confidence.shape, np.bool_))


def _median(result: Result) -> float:
    """Median ms if each row takes the mean time of the stage where it exits."""
    at = int(np.searchsorted(np.cumsum(result.figures.more["exits"]), 0.5))
    return float(result.figures.more["exit_ms"][at]["mean"])


def hybridserve(name: str) -> dict[str, Any]:
    """One family: energy of the cascade over that of the last model alone."""
    family = HYBRIDSERVE[name]
    exits, energy = np.asarray(family["exits"]), np.asarray(family["millions"], np.float64)
    reach = 1 - np.concatenate([[0.0], np.cumsum(exits)[:-1]])
    used = float((reach * energy).sum() / energy[-1])
    kept = exits > 0  # models that answer nothing are removed (Alg. 2)
    kept[-1] = True
    ends = np.flatnonzero(kept)
    reach_kept = 1 - np.concatenate([[0.0], np.cumsum(exits[ends])[:-1]])
    # Time by parameters, too: rows in the unit of time that the slowest stage carries, over those of the last alone.
    replicas = proportional(reach_kept.tolist(), energy[ends].tolist(), GPUS)
    carried = float((np.asarray(replicas) / (reach_kept * energy[ends])).min())
    return {
        "saving": 1 / used,
        "saving_without_idle_models": float(energy[-1] / (reach_kept * energy[ends]).sum()),
        "at_most": float(1 / reach[-1]),
        "replicas": list(replicas),
        "throughput": carried / (GPUS / float(energy[-1])),
        "paper": family["mwh"][0] / family["mwh"][1],
    }


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    figures: dict[str, Any] = {"tabi": {}, "hybridserve": {}}
    for name in TABI:
        figures["tabi"][name] = found = tabi(name)
        paper = found["paper"]
        print(
            f"Tabi, {name}: accuracy {found['accuracy']:.1%} (paper {paper['accuracy']:.1%}), mean "
            f"{found['mean_ms']:.1f} ms (paper {paper['mean_ms']:.1f}; as printed with "
            f"{found['overhead_that_fits_ms']:.1f} ms beside the stages, or where {found['reach_that_fits']:.1%} go on "
            f"and not {found['reach']:.1%})"
        )
        print(f"  against INFaaS: p25 {found['p25_over_infaas']:+.0%}, median {found['median_over_infaas']:+.0%}")
        for c, by_rule in found["exits"].items():
            said = ", ".join(f"{rule} {share:.1%}" for rule, share in by_rule.items())
            print(f"  c {c}: exits {said} (paper {paper['exits'][float(c)]:.1%})")
    figures["three_stages"] = three = three_stages()
    words = (f"{name} {value:+.1%} (paper {three['paper'][name]:+.1%})" for name, value in three["found"].items())
    print(f"Tabi, three stages over two on MNLI: {', '.join(words)}")
    for name in HYBRIDSERVE:
        figures["hybridserve"][name] = found = hybridserve(name)
        print(
            f"HybridServe, {name}: energy of the last model over the cascade's {found['saving']:.2f}, without models "
            f"that answer nothing {found['saving_without_idle_models']:.2f}, at most {found['at_most']:.2f} (paper "
            f"{found['paper']:.1f}); {GPUS} GPUs as {found['replicas']}: {found['throughput']:.2f} times the rows"
        )
    path = harness.save("cascades", "python -m benchmarks.papers.cascades", figures)
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
