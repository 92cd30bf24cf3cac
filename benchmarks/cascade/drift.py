"""How soon shadow rows show that a cascade's early answers are no longer the last stage's, and how often they say so
for nothing: records of the demo's cascade, resampled.

    python -m benchmarks.cascade.drift
    python -m benchmarks.cascade.drift --streams 2000

Streams of shadow rows: early exits of the test split drawn at random, as they are, and with so many answers of the last
stage replaced that three times as many disagree. And streams that disagree exactly as often as is allowed, the worst
case of a false alarm. The test is the gateway's (src/flow/cascade/drift.cc).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from arlo import _core
from arlo.cascade.decide import walk
from arlo.cascade.drift import ALPHA, allowed
from arlo.cascade.manifest import CascadeManifest
from benchmarks import harness
from benchmarks.cascade import served
from benchmarks.cascade.cached import cache_root

ROWS = 2000  # within which a change must be seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cascade", type=Path, default=cache_root() / "cascade" / "demo-1-6-40000")
    parser.add_argument("--streams", type=int, default=100_000, help="of each kind (default: %(default)s)")
    args = parser.parse_args()
    study = served.population(args.cascade, "layers").study
    manifest = CascadeManifest.load(args.cascade)
    point = manifest.point()
    ended = walk(point.all_rules, study.said, study.length, row=np.arange(len(study.row)))
    early = ended.stage < study.stages - 1
    differs = (ended.answer != study.giant)[early]
    epsilon = allowed(point, manifest.data)
    random = np.random.default_rng(7)
    rates = {
        "as recorded": differs.mean(),
        "exactly as allowed": epsilon,
        "three times as recorded": 3 * differs.mean(),
    }
    figures: dict[str, Any] = {"point": point.name, "early": int(early.sum()), "epsilon": epsilon}
    print(f"point {point.name}: {early.sum()} early exits, {differs.mean():.2%} disagree, {epsilon:.2%} allowed")
    for name, rate in rates.items():
        when = np.empty(args.streams, np.int64)
        for i in range(args.streams):
            stream = (
                differs[random.integers(0, len(differs), ROWS)] if name == "as recorded" else random.random(ROWS) < rate
            )
            when[i] = _core.cascade_drift(epsilon, ALPHA, stream.astype(np.uint8))
        seen = when >= 0
        figures[name] = {"rate": float(rate), "alarms": int(seen.sum()), "streams": args.streams}
        text = f"{name:24} {rate:7.2%} disagree: {seen.sum()} alarms in {args.streams} streams of {ROWS} rows"
        if seen.any():
            figures[name]["rows"] = np.percentile(when[seen] + 1, (50, 99, 100)).tolist()
            text += ", after {:.0f} rows (median), {:.0f} (99 %), {:.0f} (most)".format(*figures[name]["rows"])
        print(text, flush=True)
    print(f"-> {harness.save('cascade_drift', 'python -m benchmarks.cascade.drift', figures)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
