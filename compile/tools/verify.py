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

_COLUMNS = {
    "rows": "texts",
    "max_abs_diff": "largest difference",
    "padding_diff": "by padding",
    "cosine": "cosine",
    "agreement": "labels",
    "flipped": "other merge",
}


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
        if cannot := engines[runtime.name].cannot_run():
            raise EnvironmentProblem(
                f"{runtime.name} is an engine of {runtime.engine} and cannot be run here: {cannot}. "
                "Copy the repository to the machine that shall serve it, and verify it there"
            )
    rows = _reference(repository, manifest, hasher)

    def verified(runtime: Runtime) -> Verification:
        damaged = [path for path, sha256 in runtime.files.items() if _digest(repository / path, hasher) != sha256]
        if damaged:
            raise CompileError(
                f"missing or damaged: {', '.join(damaged)}: copy the repository again, or build it again"
            )
        engine, spec = engines[runtime.name], RuntimeSpec.of(runtime)
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
        return verify(subject, rows_for(rows, spec), ran_on=engine.device(), engine_ran=True)

    outcomes = []
    report = Reporter(progress)
    report.total = len(chosen)
    for runtime in chosen:
        with report.timed("verify", runtime.name) as ended:
            found: Verification | None = None
            problem = ""
            try:
                found = verified(runtime)
            except CompileError as error:
                problem = str(error)
            outcomes.append(Outcome(runtime=runtime, verification=found, problem=problem))
            ended(False, f"largest difference {found.max_abs_diff:.1e}" if found else "FAILED", "")
    if write:
        by_name = {outcome.runtime.name: outcome.verification for outcome in outcomes}
        runtimes = tuple(
            dataclasses.replace(runtime, verification=by_name.get(runtime.name, runtime.verification))
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


def _reference(repository: Path, manifest: Manifest, hasher: Hasher) -> list[Answered]:
    """The rows that the build kept, with the original's answers."""
    path, digest = repository / FILE_NAME, manifest.options.get("reference_sha256")
    if digest and path.is_file() and hasher.file(path) != digest:
        raise ConfigError(f"{path} is not the file that the build wrote: copy the repository again")
    return load(path, manifest.outputs)


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
    for title in _COLUMNS.values():
        table.add_column(title, justify="right")
    for outcome in outcomes:
        values = [getattr(outcome.verification, name, None) for name in _COLUMNS]
        cells = ("" if value is None else f"{value:.6g}" for value in values)
        table.add_row(outcome.runtime.name, *cells if outcome.verification else ("failed",))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    if ran_on := sorted({outcome.verification.ran_on for outcome in outcomes if outcome.verification}):
        console.print(f"on {', '.join(ran_on)}")
