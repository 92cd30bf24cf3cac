"""`arlo accuracy`: what several variants of a task make of the same labelled texts, row by row."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report.numbers import share

if TYPE_CHECKING:
    from arlo.cascade.records import Data, Recorded, Records
    from arlo.catalog.flow_outcomes import Outcomes, VariantOutcomes
    from arlo.catalog.manifest import Manifest

DESCRIPTION = """How accurate variants are, by length, on labelled texts: each repository runs every text on a real
worker, and what it said is kept. Runs that were cut off go on where they ended, and what another data
file or another engine said is never mixed in. A flow with `records = FOLDER` takes accuracies from there:
those of variants without a number of their own, and those of whole paths, counted row by row."""

EPILOG = """examples:
  arlo accuracy minilm2 minilm6 --data labelled.jsonl --out records
  arlo accuracy minilm2 minilm6 --data labelled.jsonl --out records --labels games,mail,web --json

data: JSON lines, {"text", "text_pair"?, "label", "group"?}."""

ENOUGH = 1000  # rows; below it, intervals are wide
FIT_ROWS = 200  # below it, probabilities are left as they are


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `accuracy`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "accuracy", help="what variants make of labelled texts", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("repositories", type=Path, nargs="+", metavar="REPOSITORY", help="compiled classifiers")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="labelled texts, JSON lines")
    parser.add_argument("--out", type=Path, default=Path("records"), metavar="DIR", help="(default: records)")
    parser.add_argument("--labels", metavar="NAME,...", help="in the order of the logits (default: the repository's)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of the worker (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Record what is missing, write the table, print it."""
    from arlo.cascade.records import Records, read_data
    from arlo.catalog.flow_outcomes import Outcomes
    from arlo.catalog.manifest import Manifest

    if not 1 <= args.threads <= 256:
        raise ConfigError(f"--threads must be from 1 to 256, not {args.threads}")
    names = [path.resolve().name for path in args.repositories]
    if len(set(names)) < len(names):
        raise ConfigError("two repositories have one folder name, which is the variant's name: rename one")
    manifests = [Manifest.load(path) for path in args.repositories]
    given = tuple(part.strip() for part in args.labels.split(",")) if args.labels else None
    data = read_data(args.data)
    if not data.labelled:
        raise ConfigError(f"{args.data}: every text needs a label, as accuracy is counted on them")
    labels = [_labels(manifest, given, path) for manifest, path in zip(manifests, args.repositories, strict=True)]
    truths = [data.labels(each) for each in labels]
    records = Records(args.out, data)
    said = [
        _record(path, manifest, data, records, args.threads)
        for path, manifest in zip(args.repositories, manifests, strict=True)
    ]
    made = map(_outcome, said, truths, labels)
    outcomes = Outcomes(said[0].tokens, dict(zip(names, made, strict=True)))
    path = outcomes.save(args.out)
    rows = [_row(name, manifest, outcomes) for name, manifest in zip(names, manifests, strict=True)]
    warning = "" if len(data.examples) >= ENOUGH else f"{len(data.examples)} rows: {ENOUGH:,} or more say more"
    if args.json:
        print_json({"written": str(path), "rows": len(data.examples), "variants": rows, "warning": warning})
        return 0
    for row in rows:
        low, high = row["interval"]
        print(
            f"{row['variant']:16} {share(row['accuracy'])} ({share(low)} to {share(high)}, 95 %), temperature"
            f" {row['temperature']:.3g}: as sure as it is right to {share(row['calibration_error'])}"
        )
        for part in row["bins"]:
            print(f"  up to {part['max_length']:5} tokens: {share(part['accuracy'])}, {part['rows']:,} rows")
    print(f"written to {path}" + (f"\nwarning: {warning}" if warning else ""))
    return 0


def _labels(manifest: Manifest, given: tuple[str, ...] | None, path: Path) -> tuple[str, ...]:
    names = given or manifest.labels
    if not names:
        raise ConfigError(f"{path} does not say what its classes are called: give --labels, in the order of its logits")
    return names


def _record(path: Path, manifest: Manifest, data: Data, records: Records, threads: int) -> Recorded:
    from arlo.cascade.records import engine_hash
    from arlo.cli.cascade.record import Job, record_jobs

    name = path.resolve().name
    key = records.key(name, engine_hash(manifest))
    there = set(records.rows(key).tolist())
    missing = tuple(row for row in range(len(data.examples)) if row not in there)
    job = Job(stage=0, importance=False, key=key, what=name, rows=missing, places=lambda _: None)
    record_jobs([(job, path)], data, records, threads=threads)
    found = records.load(key)
    if found is None or len(found.row) < len(data.examples):
        raise ConfigError(f"{path} was not asked for all texts: run this again, it goes on where it ended")
    return found


def _outcome(said: Recorded, truth: Any, labels: tuple[str, ...]) -> VariantOutcomes:
    from arlo.cascade.calibration import fit_temperature
    from arlo.cascade.decide import softmax
    from arlo.catalog.flow_outcomes import VariantOutcomes

    if truth.max() >= said.logits.shape[1]:
        raise ConfigError(f"there are more labels than the {said.logits.shape[1]} logits of a row")
    right = truth[said.row]
    t = fit_temperature(said.logits, right) if len(right) >= FIT_ROWS else 1.0
    q, _ = softmax(said.logits / t)
    return VariantOutcomes(said.logits.argmax(axis=1) == right, q.max(axis=1), t, q, right, labels)


def _row(name: str, manifest: Manifest, outcomes: Outcomes) -> dict[str, Any]:
    import numpy as np

    from arlo.cascade.calibration import ece
    from arlo.catalog.flow_outcomes import interval

    found = outcomes.variants[name]
    correct = found.correct
    ends = sorted({runtime.max_length for runtime in manifest.runtimes})
    bins = np.searchsorted(np.asarray(ends), outcomes.length)
    return {
        "variant": name,
        "accuracy": float(correct.mean()),
        "interval": interval(int(correct.sum()), len(correct)),
        "temperature": found.temperature,
        "calibration_error": ece(found.score, correct),
        "bins": [
            {
                "max_length": end,
                "rows": int((bins == i).sum()),
                "accuracy": float(correct[bins == i].mean()),
                "interval": interval(int(correct[bins == i].sum()), int((bins == i).sum())),
            }
            for i, end in enumerate(ends)
            if (bins == i).any()
        ],
    }
