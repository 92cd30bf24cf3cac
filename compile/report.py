"""The report of a finished build: JSON for scripts, a table and a few sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import Manifest, Runtime, Verification
from arlo.compile.lengths.show import as_dict, sentences
from arlo.compile.lengths.show import table as lengths_table
from arlo.compile.repository.inspect import bundle_memory_mb
from arlo.compile.steps.lengths import LengthChoice


def summarise(
    manifest: Manifest, out: Path, choice: LengthChoice | None = None, *, seconds: float, cached_steps: int
) -> dict[str, Any]:
    """A summary of the manifest. latency_ms is for one row of full length; null if nothing here runs the engine.

    bundle_memory_mb: of a worker that holds all static runtimes; null if one of them is unknown.
    """
    return {
        "repository": str(out),
        "model": manifest.model,
        "task": manifest.task,
        "source": manifest.source,
        "inputs": [tensor.name for tensor in manifest.inputs],
        "outputs": {tensor.name: list(tensor.dims) for tensor in manifest.outputs},
        "runtimes": [_runtime(runtime, out) for runtime in manifest.runtimes],
        "lengths": None if choice is None else as_dict(choice),
        "recommendation": None
        if manifest.recommendation is None
        else {
            "serve": manifest.recommendation.serve,
            "why": manifest.recommendation.why,
            "lengths": manifest.recommendation.lengths,
            "mean_us": manifest.recommendation.mean_us,
        },
        "batches": manifest.options.get("batches", []),
        "bundle_memory_mb": bundle_memory_mb(manifest),
        "bytes": disk_bytes(out),
        "seconds": round(seconds, 2),
        "cached_steps": cached_steps,
    }


def _runtime(runtime: Runtime, out: Path) -> dict[str, Any]:
    exact = runtime.verification
    row = next((point for point in reversed(runtime.latency) if point.batch == 1), None)
    return {
        "name": runtime.name,
        "max_length": runtime.max_length,
        "max_batch": runtime.max_batch,
        "dynamic": runtime.dynamic,
        "profiles": list(runtime.profiles),
        "kinds": list(runtime.kinds),
        "engine": runtime.engine,
        "backend": runtime.backend,
        "precision": runtime.precision,
        "compute_capabilities": list(runtime.compute_capabilities),
        "device": runtime.device or None,
        "bytes": sum((out / name).stat().st_size for name in runtime.files),
        "latency_ms": row.latency_us / 1e3 if row else None,
        "memory_mb": runtime.memory_mb,
        "max_abs_diff": exact.max_abs_diff if exact else None,
        "cosine": exact.cosine if exact else None,
        "agreement": exact.agreement if exact else None,
        "engine_ran": exact.engine_ran if exact else None,
    }


def disk_bytes(folder: Path) -> int:
    """Bytes of the files in a folder, hard-linked ones counted once."""
    files = {(stat.st_dev, stat.st_ino): stat.st_size for stat in map(Path.stat, _files(folder))}
    return sum(files.values())


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def exactness(exact: Verification | None) -> str:
    """How exact a runtime is, in a few words: `cosine 0.99999, 3.1e-06`."""
    if exact is None:
        return "not verified"
    words = []
    if exact.cosine is not None:
        words.append(f"cosine {_below_one(exact.cosine)}")
    if exact.agreement is not None:
        words.append(f"labels {_below_one(exact.agreement * 100)} %")
    return ", ".join([*words, f"diff {exact.max_abs_diff:.1e}"])


def _below_one(value: float) -> str:
    """The value rounded down, so that only an exact 1 reads as 1."""
    return f"{int(value * 1e6) / 1e6:.7g}"


def print_report(manifest: Manifest, summary: dict[str, Any], choice: LengthChoice | None = None) -> None:
    """Print the table of runtimes and the sentences about them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE)
    table.add_column("runtime", no_wrap=True)
    for title in ("max length", "MB", "against the original", "latency", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for row, runtime in zip(summary["runtimes"], manifest.runtimes, strict=True):
        table.add_row(
            row["name"],
            str(row["max_length"]),
            f"{row['bytes'] / 1e6:.0f}",
            exactness(runtime.verification),
            "not run" if row["latency_ms"] is None else f"{row['latency_ms']:.1f} ms",
            "not known" if runtime.memory_mb is None else f"{runtime.memory_mb} MB",
        )
    console.width = max(console.width, 90)
    if choice is not None:
        console.print(lengths_table(choice))
        for line in sentences(choice):
            console.print(line, markup=False)
    console.print(table)
    for line in report_lines(manifest, summary):
        console.print(line, markup=False)


def report_lines(manifest: Manifest, summary: dict[str, Any]) -> list[str]:
    """The sentences below the table."""
    runtimes = manifest.runtimes
    first = runtimes[0]
    built_for = f" for {', '.join(first.compute_capabilities)}" if first.compute_capabilities else ""
    lines = [
        f"{manifest.model} ({manifest.task}), {first.engine} {first.precision}{built_for}, in {summary['repository']}: "
        f"{summary['bytes'] / 1e6:.0f} MB, {summary['seconds']:.1f} s, {summary['cached_steps']} steps from the cache",
    ]
    if first.latency:
        lines.append(f"latency: one row of full length on {first.device}, without Triton around it")
    for choice in summary["batches"]:
        rows = f"{choice['rows']} row{'s' if choice['rows'] > 1 else ''}"
        lines.append(f"batches of {choice['length']} tokens: {rows}; {choice['why']}")
    if (taken := summary["bundle_memory_mb"]) is not None:
        limit = manifest.options.get("memory_mb")
        lines.append(
            f"memory: once opened, with a full batch; all static runtimes on one worker: {taken} MB, and Triton's "
            "processes" + (f". That is more than the {limit} MB of --memory-mb" if limit and taken > limit else "")
        )
    if manifest.recommendation is not None:
        lines.append(f"recommended here: {manifest.recommendation.serve}; {manifest.recommendation.why}")
    if _not_run(runtimes):
        out = summary["repository"]
        lines.append(
            "No device here runs these engines: they were verified on the CPU in their place, nothing was "
            f"measured. On the machine that will serve them: `arlo compile verify {out}`, then "
            f"`arlo compile profile {out} --update`"
        )
    return lines


def _not_run(runtimes: Sequence[Runtime]) -> bool:
    return any(runtime.verification is not None and not runtime.verification.engine_ran for runtime in runtimes)
