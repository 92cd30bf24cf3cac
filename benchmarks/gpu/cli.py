"""The command line: from arguments to latency.json, profiles, plots and summary.md."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.clock import monotonic_s, unix_s
from arlo.compile.options import parse_lengths
from arlo.errors import ArloError, ConfigError
from benchmarks.gpu import end_to_end
from benchmarks.gpu.contenders import chosen, registry
from benchmarks.gpu.contenders.base import Contender
from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.options import BATCHES, LENGTHS, MODELS, Options
from benchmarks.gpu.plan import describe
from benchmarks.gpu.plots import write_plots
from benchmarks.gpu.profile import write_profiles
from benchmarks.gpu.results import Results
from benchmarks.gpu.run import Left, measure
from benchmarks.gpu.standalone import ROOT
from benchmarks.gpu.store import Store, read_result, write_result
from benchmarks.gpu.subject import Subject
from benchmarks.gpu.summary import summary

QUICK_LENGTHS = (16, 64, 128, 256, 512)
QUICK_BATCHES = (1, 8)
EXAMPLES = """examples:
  python -m benchmarks.gpu                          everything that this machine can run, hours on a GPU
  python -m benchmarks.gpu --budget 1500            the most telling cells first, done after 25 minutes
  python -m benchmarks.gpu --quick                  5 lengths, 2 batches: a look, and a check that all of it runs
  python -m benchmarks.gpu --models minilm --precisions fp32 --contenders ort-cpu,torch-eager
  python -m benchmarks.gpu --list                   the contenders, and why some cannot run here
  python -m benchmarks.gpu --report DIR             profiles, plots and summary.md anew from DIR/latency.json

Run it again to go on where it stopped (Ctrl-C loses at most the cell at hand). A plain checkout does: where Arlo is not
installed, the end-to-end part is left out and says so. What the figures mean: docs/gpu-proof.md.
"""


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Measure every way to run an encoder on this device, by length and batch.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--models", help=f"of {', '.join(MODELS)}; default bert-base,bert-large")
    add("--precisions", help="of fp32, fp16, bf16; default fp16,fp32 on a GPU and fp32 on a CPU")
    add("--lengths", help="tokens, as 64,128,512 or first:last:step; default 16:512:16")
    add("--batches", help=f"rows; default {','.join(map(str, BATCHES))}")
    add("--contenders", help="names or first parts of names (see --list), comma-separated; default all")
    add("--quick", action="store_true", help=f"lengths {QUICK_LENGTHS}, batches {QUICK_BATCHES}, fewer repetitions")
    add("--out", type=Path, metavar="DIR", help="default benchmarks/results/<device>")
    add(
        "--work",
        type=Path,
        metavar="DIR",
        help="models and engines; default gpu-benchmark in the cache of arlo compile",
    )
    add("--threads", type=int, default=1, help="of a CPU back-end; default 1")
    add("--cell-seconds", type=float, metavar="S", help="measuring time of one contender at one length and batch; 0.3")
    add(
        "--budget", type=float, metavar="S", help="seconds for the whole run; the least telling cells are dropped first"
    )
    add("--resume", action=argparse.BooleanOptionalAction, default=True, help="keep cells measured before (default)")
    add("--end-to-end", action=argparse.BooleanOptionalAction, default=True, help="also Triton, gateway and a trace")
    add("--end-to-end-seconds", type=float, default=30.0, metavar="S", help="of each trace; default 30")
    add("--workers", type=int, default=4, help="Triton workers of the end-to-end part; default 4")
    add("--note", default="", help="a sentence for summary.md, such as what else the machine did")
    add("--list", action="store_true", help="list the contenders and end")
    add("--report", type=Path, metavar="DIR", help="only write the report of DIR anew")
    add("--json", action="store_true", help="the summary's figures as JSON on standard output")
    return made


def options_of(args: argparse.Namespace, *, gpu: bool) -> Options:
    """Checked options; ConfigError says which argument is wrong."""
    given: dict[str, Any] = {}
    if args.quick:
        given |= {"lengths": QUICK_LENGTHS, "batches": QUICK_BATCHES, "cell_s": 0.1, "rounds": (3, 30)}
        given |= {"end_to_end_s": min(10.0, args.end_to_end_seconds)}
    given.setdefault("end_to_end_s", args.end_to_end_seconds)
    given["precisions"] = _names(args.precisions) if args.precisions else (("fp16", "fp32") if gpu else ("fp32",))
    for name in ("models", "contenders"):
        if getattr(args, name):
            given[name] = _names(getattr(args, name))
    if args.lengths:
        given["lengths"] = parse_lengths(args.lengths)
    if args.batches:
        try:
            given["batches"] = tuple(int(part) for part in _names(args.batches))
        except ValueError:
            raise ConfigError(f"batches {args.batches!r} must be whole numbers, as 1,2,4") from None
    if args.cell_seconds is not None:
        given["cell_s"] = args.cell_seconds
    return Options(
        **given,
        out=args.out,
        work=args.work,
        threads=args.threads,
        budget_s=args.budget,
        resume=args.resume,
        end_to_end=args.end_to_end,
        workers=args.workers,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0, 1 for an error that is said, 130 after Ctrl-C (all that was measured is kept)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(given)
    try:
        if args.report is not None:
            return _say_report(args.report, args.json)
        machine = this_machine(threads=args.threads)
        options = options_of(args, gpu=machine.kind == "gpu")
        contenders = chosen(options.contenders)
        if args.list:
            return _list(contenders, options)
        command = shlex.join(["python", "-m", "benchmarks.gpu", *given])
        return run(options, contenders, machine, command=command, note=args.note, as_json=args.json)
    except ArloError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(
    options: Options,
    contenders: Sequence[Contender],
    machine: Machine,
    *,
    command: str,
    note: str = "",
    as_json: bool = False,
) -> int:
    """Measure and write the report."""
    out = options.out or ROOT / "benchmarks" / "results" / machine.slug
    work = options.work or _cache() / "gpu-benchmark"
    work.mkdir(parents=True, exist_ok=True)
    _limit_threads(options.threads, machine)
    started_s = monotonic_s()
    store = Store(out, environment(machine, options), resume=options.resume)
    if store.dropped:
        _say(f"{store.dropped} cells in {out} are of other versions or settings and are measured anew")
    before = _before(out) if options.resume else {}
    serving = options.end_to_end and not end_to_end.cannot()
    measuring_s = None
    if options.budget_s is not None:
        measuring_s = started_s + options.budget_s - (_serving_s(options) if serving else 0.0)
    left = measure(
        options,
        contenders,
        machine,
        store,
        make_subject=lambda model, precision: _subject(options, machine, work, model, precision),
        deadline_s=measuring_s,
        say=_say,
    )
    result = {
        "command": command,
        "note": note,
        "at": round(unix_s()),
        "seconds": round(monotonic_s() - started_s + before.get("seconds", 0.0), 1),
        "machine": dataclasses.asdict(machine) | {"slug": machine.slug},
        "options": json.loads(json.dumps(dataclasses.asdict(options), default=str)),
        "contenders": {one.name: {"backend": one.backend, "shape": one.shape} for one in registry()},
        "unavailable": left.unavailable,
        "dropped": describe(left.dropped),
        "interrupted": left.interrupted,
    }
    if before.get("end_to_end") and "skipped" not in before["end_to_end"]:
        result["end_to_end"] = before["end_to_end"]
    store.finish(result)
    if options.end_to_end and not left.interrupted and "end_to_end" not in result:
        _serve(options, machine, work, out)
    return max(_say_report(out, as_json), 130 if left.interrupted else 0)


def _serve(options: Options, machine: Machine, work: Path, out: Path) -> None:
    """The end-to-end part, into latency.json; the cells are on the disk whatever happens here."""
    choice = end_to_end.Choice.of(options, gpu=machine.kind == "gpu")
    began_s = monotonic_s()
    found = end_to_end.run(options, choice.model, choice.precision, work, say=_say)
    result = read_result(out)
    cells = result.pop("cells")
    seconds = round(result["seconds"] + monotonic_s() - began_s, 1)
    write_result(out, {**result, "seconds": seconds, "end_to_end": found, "cells": cells})


def _serving_s(options: Options) -> float:
    """What the end-to-end part takes at most, with its build, as part of a budget."""
    assert options.budget_s is not None
    traces_s = len(end_to_end.SCHEMES) * len(end_to_end.LOADS) * (options.end_to_end_s + 10)
    return min(options.budget_s / 2, traces_s + 120)


def _subject(options: Options, machine: Machine, work: Path, model: str, precision: str) -> Subject:
    return Subject(
        model,
        precision,
        device="cuda" if machine.kind == "gpu" else "cpu",
        work=work,
        longest=options.longest,
        max_batch=options.batches[-1],
        threads=options.threads,
    )


def environment(machine: Machine, options: Options) -> str:
    """A name for what the times depend on: device, driver, versions, threads, and what `padded` pads to."""
    parts: list[Any] = [machine.name, machine.facts.get("driver_version", ""), sorted(machine.versions.items())]
    parts += [options.threads, options.longest, options.batches[-1]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _limit_threads(threads: int, machine: Machine) -> None:
    if machine.kind == "cpu":
        import torch

        torch.set_num_threads(threads)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _cache() -> Path:
    named = os.environ.get("ARLO_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "arlo"


def _before(out: Path) -> dict[str, Any]:
    try:
        return read_result(out)
    except ConfigError:
        return {}


def _list(contenders: Sequence[Contender], options: Options) -> int:
    width = max(len(one.name) for one in contenders)
    for one in contenders:
        reasons = {precision: one.available(precision) for precision in options.precisions}
        bad = "; ".join(f"{precision}: {why}" for precision, why in reasons.items() if why)
        print(f"{one.name:{width}}  {bad or 'runs here'}")
    return 0


def write_report(out: Path) -> tuple[Results, str]:
    """Profiles, plots and summary.md of DIR/latency.json; the second value is the document."""
    results = Results(read_result(out))
    problems = [problem for _, problem in (write_profiles(results, out), write_plots(results, out)) if problem]
    text = summary(results, problems=problems)
    (out / "summary.md").write_text(text)
    return results, text


def _say_report(out: Path, as_json: bool) -> int:
    results, text = write_report(out)
    if as_json:
        print(json.dumps({"out": str(out), **results.header, "cells": len(results.records)}))
    else:
        print(text)
    _say(f"-> {out}")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


__all__ = ["LENGTHS", "Left", "main", "options_of", "parser", "run", "write_report"]
