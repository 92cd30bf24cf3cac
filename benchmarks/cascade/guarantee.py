"""Whether the guarantee of `arlo cascade search --epsilon` holds: real records, split again and again.

    python -m benchmarks.cascade.guarantee [--resplits 200] [--rows 2000]

Each time the point `safe` is found on `--rows` texts that were drawn from those that nothing was calibrated on, texts
of one group together. The promise is about all of these, as if there were no others: its risk on them is above epsilon
with probability delta at most. So of R resplits at most delta R + 2 sqrt(delta (1 - delta) R) may violate it; more end
in an error. On the texts that were not drawn alone, also shown, chance adds to the risk of either side.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.guarantee import Risk, safe_threshold
from arlo.cascade.manifest import CascadeManifest
from arlo.cascade.records import Records, read_data
from arlo.cascade.search.find import answers_at
from arlo.cascade.study import Study, load_study
from arlo.errors import EnvironmentProblem
from benchmarks import harness
from benchmarks.cascade.cached import cache_root

PROMISES: tuple[tuple[Risk, float, float], ...] = (
    ("disagreement", 0.05, 0.1),
    ("disagreement", 0.02, 0.1),
    ("disagreement", 0.05, 0.02),
    ("harm", 0.02, 0.1),
    ("accuracy loss", 0.02, 0.1),
)
FIT = 0


def loaded(folder: Path) -> tuple[Study, NDArray[np.uint64]]:
    """All that was not used to calibrate, and the group [rows] of each text. EnvironmentProblem without records."""
    if not (folder / "cascade.json").exists():
        raise EnvironmentProblem(f"{folder} has no cascade.json: run `make cascade-demo`")
    manifest, data = CascadeManifest.load(folder), read_data(folder / "texts.jsonl")
    assert manifest.data is not None
    records = Records(folder / "records", data)
    study = load_study(manifest, folder, data, records, shares=manifest.data.split, seed=manifest.data.seed)
    study = study.take(study.split != FIT)
    return study, data.groups()[study.row]


def risk_of(study: Study, t: float, risk: Risk) -> tuple[float, float]:
    """As it is on these rows, and the share of them that ends before the last stage."""
    answer, early = answers_at(study)(t)
    harm = (study.giant == study.truth) & (answer != study.truth)
    good = (study.giant != study.truth) & (answer == study.truth)
    seen = {
        "disagreement": float((early & (answer != study.giant)).mean()),
        "harm": float(harm.mean()),
        "accuracy loss": float(harm.mean() - good.mean()),
    }
    return seen[risk], float(early.mean())


def resplit(groups: NDArray[np.uint64], rows: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """Which rows the point is found on: whole groups, about so many rows."""
    names, number, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = random.permutation(len(names))
    chosen = np.zeros(len(names), np.bool_)
    chosen[order[: int(np.searchsorted(np.cumsum(counts[order]), rows)) + 1]] = True
    return np.asarray(chosen[number])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resplits", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2000, help="that the point is found on")
    parser.add_argument("--cascade", type=Path, default=cache_root() / "cascade" / "demo-1-6-40000")
    args = parser.parse_args()
    study, groups = loaded(args.cascade)
    found: list[dict[str, Any]] = []
    for risk, epsilon, delta in PROMISES:
        random = np.random.default_rng(0)
        seen = []
        for _ in range(args.resplits):
            which = resplit(groups, args.rows, random)
            here, rest = study.take(which), study.take(~which)
            t = safe_threshold(answers_at(here), here.giant, here.labels, epsilon=epsilon, delta=delta, risk=risk)
            seen.append((*risk_of(study, t, risk), risk_of(rest, t, risk)[0]))
        risks, exits, others = np.array(seen).T
        violations, on_others = int((risks > epsilon).sum()), int((others > epsilon).sum())
        allowed = delta * args.resplits + 2 * (delta * (1 - delta) * args.resplits) ** 0.5
        found.append(
            {
                "risk": risk,
                "epsilon": epsilon,
                "delta": delta,
                "violations": violations,
                "violations_on_others": on_others,
                "allowed": allowed,
                "mean_risk": float(risks.mean()),
                "worst_risk": float(risks.max()),
                "exits": float(exits.mean()),
            }
        )
        print(
            f"{risk:14} epsilon {epsilon:.2f} delta {delta:.2f}: {violations} of {args.resplits} above ({allowed:.1f} "
            f"allowed; {on_others} on the others alone), risk {risks.mean():.4f}, at most {risks.max():.4f}; "
            f"{exits.mean():.1%} end early",
            flush=True,
        )
    options = f"--resplits {args.resplits} --rows {args.rows}"
    values = {"rows": len(study.row), "resplits": args.resplits, "found_on": args.rows, "promises": found}
    path = harness.save("cascade_guarantee", f"python -m benchmarks.cascade.guarantee {options}", values)
    print(f"-> {path}")
    return int(any(each["violations"] > each["allowed"] for each in found))


if __name__ == "__main__":
    raise SystemExit(main())
