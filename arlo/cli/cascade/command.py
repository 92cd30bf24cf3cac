"""`arlo cascade`: its actions and their options. What they do is in the modules beside this one."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

DESCRIPTION = """Serve one model by several of rising cost: find out when the cheap answer is good enough.

A text runs on the first stage. When its calibrated confidence is high enough the answer goes out, else
the text moves on to the next stage, without its unimportant words where that helps. Everything is found
on records of real answers: thresholds on other texts than temperatures, and what is said of a point on
texts that neither has seen."""

EPILOG = """examples:
  arlo cascade init --stage small=l1 --stage large=l6 --labels games,mail,web
  arlo cascade record cascade.json --data texts.jsonl      every stage on every text; goes on after Ctrl-C
  arlo cascade calibrate cascade.json --data texts.jsonl
  arlo cascade search cascade.json --data texts.jsonl --tolerance 0.01
  arlo cascade check cascade.json --data texts.jsonl       on the texts that were kept for this
  arlo cascade check cascade.json --data texts.jsonl --target 127.0.0.1:8001      and through a gateway
  arlo cascade report cascade.json --data texts.jsonl --out cascade.html
  arlo cascade use serve.toml eo                           another operating point, while it serves
  arlo cascade refresh cascade.json --from 127.0.0.1:8003  thresholds for the traffic of today

data: JSON lines, {"text", "text_pair"?, "label"?, "group"?}. Texts of one group are never parted between
the splits. Without labels, accuracy is agreement with the last stage, and is called so."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `cascade`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "cascade", help="several models of rising cost as one", description=DESCRIPTION, epilog=EPILOG
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    _init(actions)
    record = _on_data(actions, "record", "run every stage on every text on a real worker, and keep what it says")
    record.add_argument("--stages", metavar="NAME,...", help="only these (default: all)")
    record.add_argument(
        "--alphas", metavar="A,...", help="record pruned texts, too, for each alpha (stages need the output importance)"
    )
    record.add_argument(
        "--baselines",
        action="store_true",
        help="and pruned without a look at runtimes, and cut to as many tokens by random and by first words",
    )
    record.add_argument("--threads", type=int, metavar="N", help="of the worker (default: 1)")
    record.add_argument(
        "--through",
        metavar="HOST:PORT",
        help="ask the gateway there, which serves this cascade, instead of workers of our own: whole texts alone",
    )
    record.add_argument("--model", metavar="NAME", help="with --through: the cascade's name there (default: its own)")
    calibrate = _on_records(actions, "calibrate", "fit what makes confidence right as often as it says")
    calibrate.add_argument(
        "--calibrator",
        choices=("auto", "temperature", "vector", "dirichlet", "isotonic"),
        default="temperature",
        help="auto: the best by cross-validation (default: temperature)",
    )
    calibrate.add_argument("--by-length", metavar="L,...", help="a temperature for rows up to each length, if it helps")
    _search(actions)
    check = _on_records(actions, "check", "what the points give on texts that nothing was chosen on")
    check.add_argument("--point", metavar="NAME", help="only this one (default: all)")
    check.add_argument(
        "--tolerance",
        type=float,
        default=0.01,
        metavar="F",
        help="accuracy that --point, or the default one, may lose; a point with a guarantee is held to that instead "
        "(default: 0.01)",
    )
    check.add_argument(
        "--rows", type=Path, metavar="FILE", help="write stage, reason, answer and confidence of each row"
    )
    check.add_argument(
        "--target",
        metavar="HOST:PORT",
        help="also send the texts through the gateway there, which serves this cascade, and compare row by row",
    )
    check.add_argument("--model", metavar="NAME", help="with --target: the cascade's name there (default: its own)")
    _energy(actions)
    plan = _on_records(actions, "plan", "which point so many workers carry at a rate, simulated")
    plan.add_argument("--workers", type=int, required=True, metavar="N", help="in all; with --accuracy at most")
    plan.add_argument(
        "--accuracy", type=float, metavar="A", help="the fewest workers with which a point is at least as often right"
    )
    plan.add_argument("--rate", type=float, required=True, metavar="R", help="rows a second")
    plan.add_argument("--slo-ms", type=float, required=True, metavar="MS", help="for 98 %% of the rows")
    plan.add_argument("--divided", action="store_true", help="and with workers of each stage's own, best divided")
    report = _on_records(actions, "report", "a page: reliability, curve and points")
    report.add_argument(
        "--out", type=Path, default=Path("cascade.html"), metavar="FILE", help="(default: cascade.html)"
    )
    _refresh(actions)
    _use(actions)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    code: int = importlib.import_module(f"arlo.cli.cascade.{args.action}").run(args)
    return code


def _init(actions: Any) -> None:
    init = actions.add_parser(
        "init", help="write a cascade.json", description="Check that stages fit together, and write a cascade.json."
    )
    init.add_argument(
        "--stage",
        action="append",
        required=True,
        metavar="NAME=REPOSITORY",
        help="a stage; give it several times, from the cheapest to the last",
    )
    init.add_argument("--out", type=Path, default=Path("cascade.json"), metavar="FILE", help="(default: cascade.json)")
    init.add_argument("--name", default="cascade", help="of the model that clients see (default: cascade)")
    init.add_argument(
        "--labels",
        metavar="NAME,...",
        help="in the order of the first stage's logits (default: its own, else 0, 1, ...)",
    )
    init.add_argument(
        "--order", action="append", default=[], metavar="STAGE=NAME,...", help="labels in another order of a stage's"
    )
    init.add_argument("--json", action="store_true", help="print the cascade as JSON")


def _energy(actions: Any) -> None:
    energy = actions.add_parser(
        "energy",
        help="what a batch of each stage costs in energy, by length",
        description="Write what a batch of each stage costs in energy, by length, into cascade.json: measured on a "
        "worker that has nothing else to do, by the counter of its GPU (NVML), else of the machine's CPUs (RAPL), or "
        "modelled with --watts. `search --objective energy` and simulations go by it.",
    )
    add = energy.add_argument
    add("cascade", type=Path, metavar="CASCADE", help="a cascade.json")
    add("--stages", metavar="NAME,...", help="only these (default: all)")
    add("--watts", type=float, metavar="W", help="of a busy device: nothing is run, energy is W times the latency")
    add("--seconds", type=float, default=3.0, metavar="S", help="of batches one after the other (default: 3)")
    add("--gpu", metavar="GPU", help="for the worker, and whose counter is read: number or UUID (default: the first)")
    add("--threads", type=int, default=1, metavar="N", help="of the worker (default: 1)")
    add("--json", action="store_true", help="print JSON")


def _refresh(actions: Any) -> None:
    refresh = actions.add_parser(
        "refresh",
        help="fit a point anew to the traffic that a gateway serves",
        description="Fit an operating point anew to the sample of rows that a gateway keeps ([cascade] shadow_share), "
        "with the last stage's answers in place of labels. The new point is NAME-refreshed.",
    )
    add = refresh.add_argument
    add("cascade", type=Path, metavar="CASCADE", help="a cascade.json")
    add(
        "--from",
        dest="source",
        metavar="HOST:PORT",
        default="127.0.0.1:8003",
        help="admin address of the gateway (default: 127.0.0.1:8003)",
    )
    add("--model", metavar="NAME", help="the cascade's name there (default: its own)")
    add("--point", metavar="NAME", help="this one (default: the default one)")
    add(
        "--by-length",
        metavar="LENGTHS",
        help="longest rows of length bins, as 32,64,512: thresholds of their own (default: the point's own bins)",
    )
    add("--temperatures", action="store_true", help="the stages' temperatures, too, and so every point, in its place")
    add("--out", type=Path, metavar="FILE", help="write here (default: into CASCADE)")
    add("--json", action="store_true", help="print JSON")


def _use(actions: Any) -> None:
    use = actions.add_parser(
        "use",
        help="another operating point for a cascade that is served, without a restart",
        description="Choose the operating point of a cascade that `arlo serve` serves: no row waits, no worker moves. "
        "The choice is kept in workers.run_dir, over restarts; run this where that is.",
    )
    use.add_argument("config", type=Path, metavar="CONFIG.toml", help="that `arlo serve` runs with")
    use.add_argument("point", nargs="?", metavar="POINT", help="its name in cascade.json")
    use.add_argument("--admin", metavar="HOST:PORT", help="address of the gateway (default: the configuration's)")
    use.add_argument("--reset", action="store_true", help="go back to the point of the configuration")
    use.add_argument(
        "--wait-s", type=float, default=10.0, metavar="S", help="for the gateway to have it, at most (default: 10)"
    )
    use.add_argument("--json", action="store_true", help="print JSON")


def _on_data(actions: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    parser.add_argument("cascade", type=Path, metavar="CASCADE", help="a cascade.json")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="texts, JSON lines")
    parser.add_argument(
        "--records", type=Path, metavar="DIR", help="where records are (default: records beside the cascade)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _on_records(actions: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser = _on_data(actions, name, what)
    parser.add_argument(
        "--split", metavar="F,F,F", help="shares to fit, select, test on (default: as searched, else 0.4,0.3,0.3)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of splits, samples and rules (default: as searched, else 0)"
    )
    return parser


def _search(actions: Any) -> None:
    search = _on_records(actions, "search", "find thresholds, and all else that a point has")
    add = search.add_argument
    add("--objective", choices=("mean", "p99", "energy"), default="mean", help="(default: mean time)")
    add("--accuracy", type=float, metavar="A", help="a point of at least this accuracy, too")
    add("--slo-ms", type=float, metavar="MS", help="and of at most this time")
    add("--tolerance", type=float, default=0.0, metavar="F", help="accuracy that ap may lose (default: 0)")
    add("--by-length", metavar="L,...", help="thresholds for rows up to each length, where they cost less")
    add("--plain", action="store_true", help="thresholds alone: never prune, skip stages or mix their answers")
    add(
        "--alpha-max",
        type=float,
        default=0.0,
        metavar="A",
        help="words up to this alpha may go, too, where a row has no time for its runtime (default: none)",
    )
    add(
        "--most-removed",
        type=float,
        default=0.5,
        metavar="F",
        help="share of a text's importance that may go with them (default: 0.5)",
    )
    add("--epsilon", type=float, metavar="F", help="a point whose risk is at most this, too")
    add("--delta", type=float, default=0.1, metavar="F", help="chance that it is not (default: 0.1)")
    add(
        "--risk",
        choices=("disagreement", "harm", "accuracy loss"),
        default="disagreement",
        help="what is promised (default: disagreement with the last stage)",
    )
