"""`arlo compile verify`: every engine of a repository on this machine, against the answers that the build kept."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from arlo.catalog.manifest import Manifest, Runtime, Verification
from arlo.clock import monotonic_s
from arlo.compile.cache import Hasher
from arlo.compile.engines.interface import Engine, EngineSettings, Kind, Precision, get_engine
from arlo.compile.progress import Progress, Reporter
from arlo.compile.spec import RuntimeSpec
from arlo.compile.steps.verify import Subject, rows_for, verify
from arlo.compile.tools.display import display
from arlo.compile.verify.answers import FILE_NAME, Answered, load
from arlo.errors import CompileError, ConfigError, EnvironmentProblem

_DESCRIPTION = """Run every engine of a repository on this machine and compare it with the original model, on the
texts and answers that the build kept in reference.npz; the original model is not needed. What is found
is written into arlo.json. For engines that were built where no GPU could run them."""

_EPILOG = """examples:
  arlo compile verify minilm                      every runtime; writes the results into minilm/arlo.json
  arlo compile verify minilm --runtimes minilm_len64,minilm_len128
  arlo compile verify minilm --dry-run --json     only look

Files are compared with the hashes in the manifest first. Exit code 4 when a runtime is damaged or not exact;
the others are verified and written all the same, and the manifest says of the failed one that it is not verified.
3 when nothing here runs the engines."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of verifying one runtime."""

    runtime: Runtime
    verification: Verification | None  # None: it failed
    problem: str = ""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `verify`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "verify",
        help="run the engines of a repository here, against the original model's answers",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repository", metavar="REPOSITORY", type=Path, help="a folder that `arlo compile` wrote")
    parser.add_argument("--runtimes", metavar="NAMES", help="names of the runtimes to verify, as a,b (default: all)")
    parser.add_argument(
        "--tolerance", metavar="X", type=float, help="as of `arlo compile`; default: what the build had"
    )
    parser.add_argument("--threads", metavar="N", type=int, default=1, help="threads on a CPU (default: 1)")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON; progress goes to standard error")
    return parser


def run(args: argparse.Namespace) -> int:
    """Verify; the table goes to standard output, progress to standard error."""
    with display(sys.stderr) as show:
        outcomes = verify_repository(
            args.repository,
            names=args.runtimes.split(",") if args.runtimes else None,
            tolerance=args.tolerance,
            threads=args.threads,
            write=not args.dry_run,
            progress=show,
        )
    if args.json:
        json.dump(
            {"repository": str(args.repository), "runtimes": [_as_dict(o) for o in outcomes]}, sys.stdout, indent=2
        )
        sys.stdout.write("\n")
    else:
        _print_table(outcomes)
    for outcome in outcomes:
        if outcome.problem:
            print(f"arlo: {outcome.runtime.name}: {outcome.problem}", file=sys.stderr)
    return CompileError.exit_code if any(outcome.problem for outcome in outcomes) else 0


def verify_repository(
    repository: Path,
    *,
    names: Sequence[str] | None = None,
    tolerance: float | None = None,
    threads: int = 1,
    write: bool = True,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[Outcome]:
    """Verify the runtimes `names` (None: all) of a repository on this machine, in the order of the manifest.

    ConfigError when the repository, the names or its reference answers are wrong; EnvironmentProblem when nothing here
    runs the engines. A runtime that fails does not stop the others. write: put the results into `arlo.json`, which
    marks a failed runtime as not verified.
    """
    manifest = Manifest.load(repository)
    if tolerance is not None and not tolerance > 0:
        raise ConfigError(f"tolerance must be above 0, not {tolerance}")
    chosen = _choose(manifest, names)
    hasher = Hasher()
    engines = {runtime.name: _engine(manifest, runtime) for runtime in chosen}
    for runtime in chosen:
        cannot = engines[runtime.name].cannot_run()
        if cannot:
            raise EnvironmentProblem(
                f"{runtime.name} is an engine of {runtime.engine} and cannot be run here: {cannot}. "
                "Copy the repository to the machine that shall serve it, and verify it there"
            )
    digest = manifest.options.get("reference_sha256")
    if digest and (repository / FILE_NAME).is_file() and hasher.file(repository / FILE_NAME) != digest:
        raise ConfigError(f"{repository / FILE_NAME} is not the file that the build wrote: copy the repository again")
    rows = load(repository / FILE_NAME, manifest.outputs)
    outcomes = []
    report = Reporter(progress)
    report.total = len(chosen)
    for runtime in chosen:
        start_s = monotonic_s()
        report.began("verify", runtime.name)
        outcome = _verify(repository, manifest, runtime, engines[runtime.name], rows, hasher, tolerance, threads)
        outcomes.append(outcome)
        note = f"largest difference {outcome.verification.max_abs_diff:.1e}" if outcome.verification else "FAILED"
        report.ended("verify", runtime.name, seconds=monotonic_s() - start_s, cached=False, note=note)
    if write:
        found = {outcome.runtime.name: outcome.verification for outcome in outcomes}
        runtimes = tuple(
            dataclasses.replace(runtime, verification=found.get(runtime.name, runtime.verification))
            for runtime in manifest.runtimes
        )
        dataclasses.replace(manifest, runtimes=runtimes).save(repository)
    return outcomes


def _choose(manifest: Manifest, names: Sequence[str] | None) -> list[Runtime]:
    known = {runtime.name: runtime for runtime in manifest.runtimes}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ConfigError(f"there is no runtime {', '.join(unknown)}: there are {', '.join(known)}")
    emulated = [runtime.name for runtime in manifest.runtimes if runtime.engine == "emulated"]
    if emulated:
        raise ConfigError(f"{emulated[0]} is emulated: it computes no answers, so there is nothing to verify")
    return [runtime for runtime in manifest.runtimes if names is None or runtime.name in names]


def _engine(manifest: Manifest, runtime: Runtime) -> Engine:
    on_gpu = runtime.engine.startswith("tensorrt") or manifest.options.get("device") == "cuda"
    settings = EngineSettings(
        precision=cast(Precision, runtime.precision),
        device="cuda" if on_gpu else "cpu",
        backend="python" if runtime.backend == "python" else "native",
        compute_capabilities=runtime.compute_capabilities,
        kinds=cast(tuple[Kind, ...], runtime.kinds),
    )
    return get_engine(runtime.engine, settings)


def _verify(  # noqa: PLR0917
    repository: Path,
    manifest: Manifest,
    runtime: Runtime,
    engine: Engine,
    rows: Sequence[Answered],
    hasher: Hasher,
    tolerance: float | None,
    threads: int,
) -> Outcome:
    damaged = [path for path, digest in runtime.files.items() if _digest(repository / path, hasher) != digest]
    if damaged:
        problem = f"missing or damaged: {', '.join(damaged)}: copy the repository again, or build it again"
        return Outcome(runtime=runtime, verification=None, problem=problem)
    spec = RuntimeSpec(
        name=runtime.name,
        max_length=runtime.max_length,
        max_batch=runtime.max_batch,
        shape="profiles" if runtime.profiles else "dynamic" if runtime.dynamic else "static",
        profiles=runtime.profiles,
    )
    try:
        subject = Subject(
            runner=engine.open(repository / runtime.name / "1", spec, threads=threads),
            spec=spec,
            task=manifest.task,
            precision=runtime.precision,
            inputs=manifest.inputs,
            outputs=manifest.outputs,
            tolerance=tolerance if tolerance is not None else manifest.options.get("tolerance"),
            importance=manifest.importance,
            adaptation=manifest.adaptation,
        )
        verification = verify(subject, rows_for(rows, spec), ran_on=engine.device(), engine_ran=True)
    except CompileError as error:
        return Outcome(runtime=runtime, verification=None, problem=str(error))
    return Outcome(runtime=runtime, verification=verification)


def _digest(path: Path, hasher: Hasher) -> str:
    try:
        return hasher.file(path)
    except OSError:
        return ""


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    found = outcome.verification
    return {
        "name": outcome.runtime.name,
        "max_length": outcome.runtime.max_length,
        "precision": outcome.runtime.precision,
        "exact": found is not None,
        "problem": outcome.problem,
        "verification": dataclasses.asdict(found) if found else None,
    }


def _print_table(outcomes: Sequence[Outcome]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    table.add_column("runtime")
    flips = any(each.verification is not None and each.verification.flipped is not None for each in outcomes)
    for title in ("texts", "largest difference", "by padding", "cosine", "labels", *(["other merge"] * flips)):
        table.add_column(title, justify="right")
    for outcome in outcomes:
        found = outcome.verification
        if found is None:
            table.add_row(outcome.runtime.name, "failed")
            continue
        table.add_row(
            outcome.runtime.name,
            str(found.rows),
            f"{found.max_abs_diff:.1e}",
            f"{found.padding_diff:.1e}",
            "" if found.cosine is None else f"{found.cosine:.6f}",
            "" if found.agreement is None else f"{found.agreement:.2%}",
            *(["" if found.flipped is None else f"{found.flipped:.2%}"] * flips),
        )
    console = Console()
    console.print(table)
    ran_on = sorted({outcome.verification.ran_on for outcome in outcomes if outcome.verification})
    if ran_on:
        console.print(f"on {', '.join(ran_on)}", highlight=False, soft_wrap=True)
