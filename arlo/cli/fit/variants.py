"""`arlo fit --variants`: the accuracy of a stage's variants, row by row; a flow reads it as its `records`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.manifest import Manifest
from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report.numbers import share

if TYPE_CHECKING:
    from arlo.cascade.records import Recorded
    from arlo.catalog.flow_outcomes import Outcomes, VariantOutcomes

ENOUGH = 1000  # rows; below it, intervals are wide
FIT_ROWS = 200  # with fewer, probabilities are left as they are


def run(args: argparse.Namespace) -> int:
    """Record the missing rows, write the outcomes, print accuracies."""
    from arlo.cascade.records import Records, read_data
    from arlo.catalog.flow_outcomes import Outcomes
    from arlo.cli.fit.record import record, whole

    repositories = {path.resolve().name: path for path in map(Path, args.models)}
    if len(repositories) < len(args.models):
        raise ConfigError("two repositories have one folder name, which is the variant's name: rename one")
    manifests = {name: Manifest.load(path) for name, path in repositories.items()}
    data = read_data(args.data)
    if not data.labelled:
        raise ConfigError(f"{args.data}: every text needs a label, as accuracy is counted on them")
    labels = {name: _labels(manifest, args, repositories[name]) for name, manifest in manifests.items()}
    truths = {name: data.labels(each) for name, each in labels.items()}
    folder = args.records or Path("records")
    records = Records(folder, data)
    jobs = {name: whole(name, path, data, records) for name, path in repositories.items()}
    record(list(jobs.values()), data, records, threads=args.threads)
    said = {}
    for name, job in jobs.items():
        found = records.load(job.key)
        if found is None or len(found.row) < len(data.examples):
            raise ConfigError(f"{job.repository} has not answered every text: the same command resumes")
        said[name] = found
    made = {name: _outcome(each, truths[name], labels[name]) for name, each in said.items()}
    outcomes = Outcomes(next(iter(said.values())).tokens, made)
    path = outcomes.save(folder)
    rows = [_row(name, manifest, outcomes) for name, manifest in manifests.items()]
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


def _labels(manifest: Manifest, args: argparse.Namespace, path: Path) -> tuple[str, ...]:
    found = args.labels or manifest.labels
    if not found:
        raise ConfigError(f"{path} does not say what its classes are called: give --labels, in the order of its logits")
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
    from arlo.cascade.calibration import ece
    from arlo.catalog.flow_outcomes import by_length, interval

    found = outcomes.variants[name]
    correct = found.correct
    return {
        "variant": name,
        "accuracy": float(correct.mean()),
        "interval": interval(int(correct.sum()), len(correct)),
        "temperature": found.temperature,
        "calibration_error": ece(found.score, correct),
        "bins": by_length(correct, outcomes.length, sorted({runtime.max_length for runtime in manifest.runtimes})),
    }
