"""`arlo fit`: its options, and the steps from texts to operating points."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.fit.common import need_scipy
from arlo.cli.fit.steps import Steps, say
from arlo.cli.text import LENGTHS, between, listed, print_json, words
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.manifest import CascadeManifest, Point
    from arlo.cascade.records import Data
    from arlo.cascade.search.find import Options
    from arlo.cascade.study import Study
    from arlo.cli.fit.show import Fitted
    from arlo.cli.fit.stages import Wanted

DESCRIPTION = """Make several models of rising cost into one: find out when the cheap answer is good enough.

Every model runs every text on a real worker (`records`). Confidence is calibrated on one part of the texts, thresholds
are searched on another, and what is reported of an operating point comes from a third, which nothing was chosen on.
The result is a cascade.json, which `arlo serve` serves. Each step is kept: the same command resumes after Ctrl-C, and
repeats only the steps whose inputs have changed. A cascade.json is fitted again with the options of the last time,
except for those that are given.

Exit code 1: a bar is missed on the test split. At the low end of its 95 % interval the default point loses more
accuracy than --tolerance and 0.01; or the risk of a guarantee is above its promise even at its low end; or the
calibration error (ECE15) of a stage is neither halved nor at most 0.05."""

EPILOG = """examples:
  arlo fit small=l1 large=l6 --data texts.jsonl --tolerance 0.01      writes cascade.json, and records next to it
  arlo fit cascade.json --data texts.jsonl --guarantee disagreement=0.05
  arlo fit cascade.json --data texts.jsonl --report cascade.html
  arlo fit cascade.json --data texts.jsonl --target 127.0.0.1:8001    does the gateway answer as the records do?
  arlo fit cascade.json --from 127.0.0.1:8003      thresholds for the traffic that a gateway has sampled
  arlo fit --variants minilm2 minilm6 --data labelled.jsonl --records records      accuracies for a flow

data: JSON lines, {"text", "text_pair"?, "label"?, "group"?}. Texts of one group are never parted between the
splits. Without labels, accuracy is agreement with the last stage, and is called so."""

RISKS = ("disagreement", "harm", "accuracy loss")
# The options for fitting a cascade, with their defaults.
DEFAULTS: dict[str, Any] = {
    "calibrator": "temperature",
    "by_length": None,
    "alphas": None,
    "alpha_max": 0.0,
    "plain": False,
    "objective": "mean",
    "watts": None,
    "tolerance": 0.0,
    "accuracy": None,
    "slo_ms": None,
    "guarantee": None,
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `fit`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "fit", help="labelled texts in, operating points out", description=DESCRIPTION, epilog=EPILOG
    )
    add = parser.add_argument
    add(
        "models",
        nargs="+",
        metavar="[NAME=]REPOSITORY",
        help="compiled classifiers, from the cheapest to the most accurate; or one cascade.json, to fit again",
    )
    add("--data", type=Path, metavar="FILE", help="texts, JSON lines")
    add("--out", type=Path, metavar="FILE", help="the cascade.json to write (default: cascade.json, or the one given)")
    add("--records", type=Path, metavar="DIR", help="what the models said (default: records next to the cascade)")
    add("--name", help="of the model that clients see (default: cascade)")
    add(
        "--labels",
        type=words,
        default=(),
        metavar="NAME,...",
        help="of the first model's logits (default: its own, else 0, 1, ...)",
    )
    add("--order", action="append", default=[], metavar="STAGE=NAME,...", help="labels of a stage in another order")
    add("--threads", type=between(1, 256), default=1, metavar="N", help="of a worker (default: 1)")
    add("--report", type=Path, metavar="FILE", help="write a page (.html), or a file for `arlo report` (.json)")
    add("--json", action="store_true", help="print JSON")

    _more(parser)
    return parser


def _more(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how it is fitted").add_argument
    how(
        "--calibrator",
        choices=("auto", "temperature", "vector", "dirichlet", "isotonic"),
        help="auto: the best by cross-validation (default: temperature)",
    )
    how(
        "--by-length",
        type=LENGTHS,
        metavar="L,...",
        help="temperatures and thresholds for rows up to each length, where that helps",
    )
    how(
        "--alphas",
        type=listed(0.01, 100),
        metavar="A,...",
        help="leave out words of little importance, at each alpha of Eq. 5",
    )
    how(
        "--alpha-max",
        type=between(0, 100, whole=False),
        metavar="A",
        help="for rows short of time (default: 0)",
    )
    how(
        "--plain",
        action="store_true",
        default=None,
        help="thresholds alone: never prune, skip stages or mix their answers",
    )
    how("--objective", choices=("mean", "p99", "energy"), help="what to save (default: mean time)")
    how(
        "--watts",
        type=between(0.001, 100_000, whole=False),
        metavar="W",
        help="of a busy device, where no counter of energy can be read",
    )

    points = parser.add_argument_group("operating points: ap, as accurate as the last; eo, the best trade").add_argument
    share = between(0, 1, whole=False)
    points("--tolerance", type=share, metavar="F", help="accuracy that ap may lose (default: 0)")
    points("--accuracy", type=share, metavar="A", help="add the point `target`, of at least this accuracy")
    points("--slo-ms", type=between(1e-3, 3.6e6, whole=False), metavar="MS", help="and of at most this time")
    points(
        "--guarantee",
        metavar="RISK=F[:DELTA]",
        help="add the point `safe`: with probability 1 - DELTA (default: 0.1) the risk, disagreement, harm or accuracy "
        "loss, is at most F",
    )

    other = parser.add_argument_group("in place of fitting").add_argument
    other("--target", metavar="HOST:PORT", help="also send the test texts to the gateway there, and compare")
    other(
        "--from", dest="source", metavar="HOST:PORT", help="refit the default point to a gateway's sample (admin port)"
    )
    other("--temperatures", action="store_true", help="with --from: the temperatures and every point, in their place")
    other("--variants", action="store_true", help="write accuracies of variants of one stage, for a flow's `records`")


def run(args: argparse.Namespace) -> int:
    """Fit a cascade, refit it to traffic, or measure variants."""
    if args.source is not None:
        from arlo.cli.fit import refresh

        return refresh.run(args)
    if args.data is None:
        raise ConfigError("--data is missing: the texts, as JSON lines")
    try:
        if args.variants:
            from arlo.cli.fit import variants

            return variants.run(args)
        return Fit(args).run()
    except KeyboardInterrupt:
        say("stopped; what is recorded is kept: the same command resumes")
        raise


class Fit:
    """One run: the cascade as far as it is fitted, and the inputs of its steps."""

    def __init__(self, args: argparse.Namespace) -> None:
        from arlo.cascade.records import Records, read_data
        from arlo.cli.fit.stages import describe, wanted_of

        need_scipy()
        self.args = args
        self.wanted: Wanted = wanted_of(args)
        self.steps = Steps(self.wanted.out.with_suffix(".fit.json"))
        before = self.steps.options if self.wanted.again else {}
        for name, default in DEFAULTS.items():
            if getattr(args, name) is None:
                value = before.get(name, default)
                setattr(args, name, tuple(value) if isinstance(value, list) else value)
        self.options = _options(args)
        self.cascade: CascadeManifest = describe(self.wanted)
        self.folder = self.wanted.out.parent
        self.data: Data = read_data(args.data)
        self.data.labels(self.cascade.labels)  # before hours are spent on texts that teach nothing
        used = self.wanted.before.data if self.wanted.before is not None else None
        self.split = used.split if used is not None else (0.4, 0.3, 0.3)
        self.records = Records(args.records or self.folder / "records", self.data)
        self.steps.keep({name: getattr(args, name) for name in DEFAULTS})

    def run(self) -> int:
        """Run all steps; 1 if a bar is missed."""
        from arlo.cli.fit.check import check
        from arlo.cli.fit.show import Fitted

        if self.wanted.before is None:
            self.cascade.save(self.wanted.out)
        self._record()
        if self.options.objective == "energy":
            self._energy()
        calibration = self._calibrate()
        searched = self._search()
        self.cascade.save(self.wanted.out)
        study = self._study()
        test = study.of(2)
        found = Fitted(study, calibration, searched, *check(test, self.options.tolerance))
        if self.args.target is not None:
            self._ask(test, found.points)
        if self.args.report is not None:
            from arlo.cli.fit.report import result
            from arlo.report.result import save

            save(self.args.report, [result(found)])
        self._tell(found)
        return 1 if found.failed else 0

    def _record(self) -> None:
        from arlo.cli.fit.record import Stages

        before = self._recorded()
        Stages(self.cascade, self.folder, self.data, self.records).record(
            self.args.alphas or (), threads=self.args.threads
        )
        texts = len(self.data.examples)
        for name, count in before.items():
            how = "unchanged" if count == texts else f"{texts - count} new"
            say(f"record {name}: {texts} texts, {how}")

    def _recorded(self) -> dict[str, int]:
        from arlo.cascade.study import stage_key

        stages = enumerate(self.cascade.stages)
        keys = {stage.name: stage_key(self.cascade, self.folder, self.records, s) for s, stage in stages}
        return {name: len(self.records.rows(key)) for name, key in keys.items()}

    def _energy(self) -> None:
        from arlo.cli.fit.energy import stage_energy

        watts, threads, stages = self.args.watts, self.args.threads, []
        for stage in self.cascade.stages:
            make = functools.partial(
                stage_energy, stage.name, self.folder / stage.repository, watts=watts, threads=threads
            )
            found = self.steps.run(f"energy of {stage.name}", [stage.manifest_sha256, watts, threads], make)
            points = tuple((int(a), int(b), float(mj)) for a, b, mj in found["energy_mj"])
            stages.append(dataclasses.replace(stage, energy_mj=points, energy_source=found["energy_source"]))
        self.cascade = dataclasses.replace(self.cascade, stages=tuple(stages))

    def _calibrate(self) -> dict[str, Any]:
        from arlo.cascade.spec import Calibrator
        from arlo.catalog.toml_text import read
        from arlo.cli.fit.calibrate import calibrate

        if not self.data.labelled:
            say("calibrate: left out, as the texts have no labels")
            return {"stages": [], "notes": []}
        kind, bins = self.args.calibrator, self.options.bins
        found: dict[str, Any] = self.steps.run(
            "calibrate", [self._read(), kind, bins], lambda: calibrate(self._study(), kind, bins)
        )
        calibrators = [read(Calibrator, each["calibrator"], each["name"]) for each in found["stages"]]
        stages = [
            dataclasses.replace(stage, calibrator=calibrator)
            for stage, calibrator in zip(self.cascade.stages, calibrators, strict=True)
        ]
        self.cascade = dataclasses.replace(self.cascade, stages=tuple(stages))
        return found

    def _search(self) -> dict[str, Any]:
        from arlo.cascade.manifest import DataUsed, Point
        from arlo.cascade.study import pruned_keys
        from arlo.catalog.toml_text import read
        from arlo.cli.fit.search import search

        energy = self.options.objective == "energy"
        fitted = [[dataclasses.asdict(s.calibrator), s.energy_mj if energy else ()] for s in self.cascade.stages]
        pruned = pruned_keys(self.cascade, self.folder, self.records)
        inputs = [self._read(), dataclasses.asdict(self.options), fitted, pruned]
        found: dict[str, Any] = self.steps.run("search", inputs, lambda: search(self._study(), self.options))
        points: list[Point] = [read(Point, each, each["name"]) for each in found["points"]]
        stages = [
            dataclasses.replace(stage, accuracy=accuracy)
            for stage, accuracy in zip(self.cascade.stages, found["accuracies"], strict=True)
        ]
        kept = self._kept_points(points)
        self.cascade = dataclasses.replace(
            self.cascade,
            stages=tuple(stages),
            points=(*kept, *points),
            default_point=_default(self.wanted.before, [point.name for point in (*kept, *points)]),
            curve=tuple((accuracy, cost) for accuracy, cost in found["curve"]),
            data=DataUsed(
                sha256=self.data.sha256,
                rows=len(self.data.examples),
                split=self.split,
                lengths=tuple(found["lengths"]),
                confidences=tuple(found["confidences"]),
            ),
        )
        return found

    def _kept_points(self, made: list[Point]) -> list[Point]:
        """The earlier points that are not made again. Thresholds of other calibrators mean nothing."""
        before = self.wanted.before
        if before is None or [s.calibrator for s in before.stages] != [s.calibrator for s in self.cascade.stages]:
            return []
        names = {point.name for point in made}
        return [point for point in before.points if point.name not in names]

    def _read(self) -> Any:
        """The input of every step after the records: the engines' answers to the texts, and the split."""
        from arlo.cascade.study import stage_key

        keys = [stage_key(self.cascade, self.folder, self.records, s) for s in range(len(self.cascade.stages))]
        return [self.data.sha256, keys, self.cascade.labels, [s.label_order for s in self.cascade.stages], self.split]

    def _study(self) -> Study:
        from arlo.cascade.study import load_study

        return load_study(
            self.cascade, self.folder, self.data, self.records, objective=self.options.objective, shares=self.split
        )

    def _ask(self, test: Study, found: list[dict[str, Any]]) -> None:
        """Ask each point through the gateway."""
        from arlo.cli.fit.served import compare

        target, tokenizer = self.args.target, self.folder / self.cascade.stages[0].repository
        for point, each in zip(self.cascade.points, found, strict=True):
            served = compare(
                test, self.data, point, target=target, model=self.cascade.name, tokenizer=tokenizer, seed=0
            )
            each["served"] = served
            differ = served["stage"] + served["answer"] + served["confidence"]
            if differ:
                each["failed"].append(
                    f"point {point.name}: {differ} of {served['rows']} rows through {target} are not as recorded "
                    f"(stage {served['stage']}, answer {served['answer']}, confidence {served['confidence']})"
                )

    def _tell(self, found: Fitted) -> None:
        for line in (*found.calibration["notes"], *found.searched["warnings"]):
            print(f"arlo: warning: {line}", file=sys.stderr)
        if self.args.json:
            print_json({"written": str(self.wanted.out), **found.as_dict()})
            return
        found.show()
        print(f"written to {self.wanted.out}; next: serve it with [cascade] manifest = {str(self.wanted.out)!r}")


def _default(before: CascadeManifest | None, names: list[str]) -> str | None:
    if before is not None and before.default_point in names:
        return before.default_point
    return "ap" if "ap" in names else names[0] if names else None


def _options(args: argparse.Namespace) -> Options:
    from arlo.cascade.search.find import Options

    options = Options(
        objective=args.objective,
        accuracy=args.accuracy,
        slo_ms=math.inf if args.slo_ms is None else args.slo_ms,
        tolerance=args.tolerance,
        bins=args.by_length or (),
        plain=args.plain,
        alpha_max=args.alpha_max,
    )
    if args.guarantee is None:
        return options
    risk, _, rest = args.guarantee.partition("=")
    limit, _, delta = rest.partition(":")
    share = between(0, 1, whole=False, above=True)
    try:
        epsilon, chance = share(limit), share(delta or "0.1")
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--guarantee is RISK=F[:DELTA], and a number of it {error}") from None
    if risk not in RISKS:
        raise ConfigError(f"--guarantee is RISK=F[:DELTA] with a risk of {', '.join(RISKS)}, not {args.guarantee!r}")
    return dataclasses.replace(options, epsilon=epsilon, delta=chance, risk=risk)
