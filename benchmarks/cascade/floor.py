"""How little of its last stage's time a cascade can take, on records: which operating point would do.

    python -m benchmarks.cascade.floor CASCADE --data TEXTS [--result reports/cascade/result.json] [--losses 0.005 0.01]

For each loss of accuracy the cheapest thresholds are taken that lose no more on the select split, and their accuracy
and time are read from the test split; beside them the cheapest of the test split itself, which no search can find, as a
bound. Times are the engines'. With `--result`, the last stage's served mean less its engine's is what client, gateway
and Triton add: to each request once (`request`), or, the worst case, to each visit of a stage (`visit`). `--ms` and
`--added-ms` say these times instead, as those of a quiet machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from arlo.cascade.manifest import CascadeManifest
from arlo.cascade.records import Records, read_data
from arlo.cascade.search import exact
from arlo.cascade.spec import Ensemble
from arlo.cascade.study import Study, load_study
from arlo.errors import ArloError

SELECT, TEST = 1, 2


def cheapest(study: Study, loss: float, mix: Ensemble | None) -> tuple[float, ...] | None:
    """Thresholds of the cheapest point of the study's own curve that loses at most so much; None: there is none."""
    front = exact.search(study.table(mix))
    good = np.nonzero(front.accuracy >= float((study.said[-1].answer == study.truth).mean()) - loss - 1e-12)[0]
    return tuple(front.thresholds[good[0]].tolist()) if len(good) else None


def read(
    study: Study, thresholds: tuple[float, ...], added_ms: float, mix: Ensemble | None
) -> tuple[float, float, float, float, float]:
    """Accuracy less that of the last stage; share of rows that reach it; and the share of its mean time: engines alone,
    with `added_ms` for each request, and for each visit."""
    table = study.table(mix)
    ended = table.exits(thresholds)
    right, cost = table.at(ended)
    last = study.ms[:, -1].mean()
    ran = float((1 + ended).mean())
    mean = float(cost.mean())
    return (
        float(right.mean() - (study.said[-1].answer == study.truth).mean()),
        float((ended == study.stages - 1).mean()),
        mean / last,
        (mean + added_ms) / (last + added_ms),
        (mean + added_ms * ran) / (last + added_ms),
    )


def main() -> int:
    """Print a line for each loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cascade", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--result", type=Path, help="result.json of the demo, for what a request costs beside engines")
    parser.add_argument("--ms", type=float, nargs="+", metavar="MS", help="of a row at each stage (default: recorded)")
    parser.add_argument("--added-ms", type=float, default=0.0, metavar="MS", help="to a request (default: 0)")
    parser.add_argument("--weights", type=float, nargs="+", metavar="W", help="of the stages' answers, mixed")
    parser.add_argument("--losses", type=float, nargs="+", default=[0.0, 0.005, 0.0075, 0.01, 0.015])
    args = parser.parse_args()
    try:
        manifest, data = CascadeManifest.load(args.cascade), read_data(args.data)
        if manifest.data is None:
            print("floor: the cascade has not been searched yet", file=sys.stderr)
            return 1
        folder = args.cascade if args.cascade.is_dir() else args.cascade.parent
        records = Records(folder / "records", data)
        study = load_study(manifest, folder, data, records, shares=manifest.data.split, seed=manifest.data.seed)
    except ArloError as error:
        print(f"floor: {error}", file=sys.stderr)
        return 1
    if args.ms is not None:
        ms = np.broadcast_to(np.asarray(args.ms), study.ms.shape).copy()
        study = dataclasses.replace(study, ms=ms, cost=ms)
    select, test = study.of(SELECT), study.of(TEST)
    engine = test.ms.mean(axis=0)
    added = args.added_ms
    mix = None if args.weights is None else Ensemble(kind="calibrated", weights=tuple(args.weights))
    if args.result is not None:
        added = json.loads(args.result.read_text())["last_stage"]["mean_ms"] - float(engine[-1])
    print(f"engines: {', '.join(f'{ms:.2f}' for ms in engine)} ms a row; added to a request: {added:.2f} ms")
    print(f"{'loss allowed':>12} {'chosen on':>9} {'loss':>8} {'reach':>6} {'engines':>8} {'request':>8} {'visit':>6}")
    for loss in args.losses:
        for name, chosen in (("select", cheapest(select, loss, mix)), ("test", cheapest(test, loss, mix))):
            if chosen is None:
                continue
            lost, reach, *ratios = read(test, chosen, added, mix)
            print(
                f"{loss:12.2%} {name:>9} {-lost:8.2%} {reach:6.1%} {ratios[0]:8.3f} {ratios[1]:8.3f} {ratios[2]:6.3f}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
