"""The cascades of Tabi (EuroSys'23) and HybridServe (ICDCS'25) beside what their own numbers give here.

    python -m benchmarks.cascade.papers

Tabi: confidences are drawn from what its Fig. 8 says of SST-2 and MNLI (Eq. 4 acts like a cut at (1 + c) / 2), and
answers are right as often as section 7.3 says of rows above and below the cut. Its mean of Table 2 is simulated, one
worker for each stage and almost no load, as the paper measures in a closed loop. HybridServe: energy is the sum of
reach times energy, with energy by parameters, and what follows from the exits that it prints. Nothing is tuned; where
two numbers of a paper disagree, both are shown.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.decide import escalation_probability, hash01
from arlo.cascade.spec import Rule, Rules, hard
from arlo.simulator.cascade.engine import CascadeRun, Journeys, run
from arlo.simulator.scenario.scenario import RuntimeModel
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
OVERHEAD_MS = 2.3  # what MNLI's mean is above the sum of its parts; the paper says at most 5
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
    rows = np.arange(ROWS)
    exits: dict[str, dict[str, float]] = {}
    for c in task["paper"]["exits"]:
        found = {"cut": float((conf >= (1 + c) / 2).mean())}
        for k in (5.0, 10.0, 20.0):
            p = escalation_probability(Rule(kind="soft", c=c, k=k), conf)
            found[f"k {k:g}"] = float((hash01(0, rows, 0) >= p).mean())
        exits[f"{c:g}"] = found
    cut = (1 + task["c"]) / 2
    inside = conf >= cut
    random = np.random.default_rng(1)
    right = [
        np.where(inside, random.random(ROWS) < a, random.random(ROWS) < b) for a, b in zip(*task["right"], strict=True)
    ]
    journeys = Journeys(confidence=np.stack([conf, np.zeros(ROWS)], axis=1), correct=np.stack(right, axis=1))
    ms = (task["ms"][0], task["ms"][1] * task["words_kept"])
    stages = [[RuntimeModel(name=f"s{i}", max_length=128, points=((128, 1, each),))] for i, each in enumerate(ms)]
    gaps = random.exponential(200e6 * sum(ms), 50_000)  # a closed loop has no waiting: one in 200 finds another
    result = run(
        CascadeRun(
            stages=stages,
            workers=(1, 1),
            rules=Rules(prices=((hard(cut),),)),
            journeys=journeys,
            arrived_ns=np.cumsum(gaps).astype(np.int64),
            lengths=np.full(len(gaps), 100, np.int32),
            slo_ms=1000.0,
            batching="one",
        )
    )
    return {
        "exits": exits,
        "accuracy": result.accuracy,
        "mean_ms": result.mean_ms + OVERHEAD_MS,
        "paper": task["paper"],
    }


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
    return {
        "saving": 1 / used,
        "saving_without_idle_models": float(energy[-1] / (reach_kept * energy[ends]).sum()),
        "at_most": float(1 / reach[-1]),
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
            f"{found['mean_ms']:.1f} ms (paper {paper['mean_ms']:.1f})"
        )
        for c, by_rule in found["exits"].items():
            said = ", ".join(f"{rule} {share:.1%}" for rule, share in by_rule.items())
            print(f"  c {c}: exits {said} (paper {paper['exits'][float(c)]:.1%})")
    for name in HYBRIDSERVE:
        figures["hybridserve"][name] = found = hybridserve(name)
        print(
            f"HybridServe, {name}: energy of the last model over the cascade's {found['saving']:.2f}, without models "
            f"that answer nothing {found['saving_without_idle_models']:.2f}, at most {found['at_most']:.2f} (paper "
            f"{found['paper']:.1f})"
        )
    path = harness.save("cascade_papers", "python -m benchmarks.cascade.papers", figures)
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
