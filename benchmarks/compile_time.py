"""Time and memory of `arlo compile`, run as a user runs it.

    minilm      8 lengths of the demo model: cold (an empty cache), then warm (the same cache, another --out)
    bert-base   2 lengths of a model of BERT-base's size, random weights: the most memory that its build takes

Each run is a process of its own. Memory is sampled over that process and all its descendants, from /proc: resident
(what each has in memory, added up, so that pages they share count several times: an upper bound) and proportional
(shared pages counted once). The time line is told by the lines that the program prints.

Python's compiled files lie in a folder of the bench's own, filled by one small build that does not count, as the first
use of an installation fills them: without them (PYTHONDONTWRITEBYTECODE) every start compiles the sources of torch,
transformers and onnx again, which costs more than a whole warm build.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import Manifest
from arlo.compile.steps.resolve import DEMO_MODEL
from benchmarks import harness

EIGHT_LENGTHS, FEW_LENGTHS = "64:512:64", "128,512"
WARM_RUNS = 3
COLD_BAR_S, WARM_BAR_S, MEMORY_BAR_MB = 90.0, 3.0, 6000.0
SAMPLE_S = 0.05
PROPORTIONAL_EVERY = 5  # samples: the kernel walks the page tables for it

_LINE = re.compile(r"\[ *\d+/\d+\] (?P<step>\S+) (?P<title>.*?): (?:(?P<seconds>\d+\.\d+) s|cached)(?:, .*)?$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is compiled, and how."""

    model: str
    engine: str
    precision: str = "fp32"

    @property
    def name(self) -> str:
        return f"{self.model} {self.engine} {self.precision}"


CASES = (
    Case(model="minilm", engine="tensorrt-rtx"),
    Case(model="minilm", engine="tensorrt-rtx", precision="fp16"),
    Case(model="minilm", engine="onnxruntime"),
    Case(model="bert-base", engine="tensorrt-rtx"),
    Case(model="bert-base", engine="tensorrt-rtx", precision="fp16"),
    Case(model="bert-base", engine="onnxruntime"),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of progress. `at_s`: when it was printed, from the start of the process."""

    step: str
    title: str
    seconds: float  # 0 where it came from the cache
    cached: bool
    at_s: float


def parse_step(line: str, at_s: float) -> Step | None:
    """The step that a line of progress tells of; None for other lines."""
    found = _LINE.match(line.rstrip())
    if found is None:
        return None
    seconds = found["seconds"]
    return Step(
        step=found["step"], title=found["title"], seconds=float(seconds or 0), cached=seconds is None, at_s=at_s
    )


def time_line(steps: Sequence[Step], wall_s: float) -> dict[str, float]:
    """Seconds by step, start and end of the process included, largest first. Steps side by side add up to more than
    the wall time."""
    found: dict[str, float] = {}
    for step in steps:
        found[step.step] = found.get(step.step, 0.0) + step.seconds
    if steps:
        found["start of the program"] = steps[0].at_s - steps[0].seconds
        found["end of the program"] = wall_s - steps[-1].at_s
    return {name: round(seconds, 2) for name, seconds in sorted(found.items(), key=lambda item: -item[1])}


class MemoryPeak:
    """Samples the memory of a process tree in a thread of its own, while used as a context."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.resident_mb = 0.0
        self.proportional_mb = 0.0
        self.processes = 0  # at the peak of resident memory

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        sample = 0
        while not self._ended.wait(SAMPLE_S):
            pids = harness.descendants(self._pid)
            resident = sum(_kilobytes(pid, "status", "VmRSS:") for pid in pids) / 1e3
            if resident > self.resident_mb:
                self.resident_mb, self.processes = resident, len(pids)
            if sample % PROPORTIONAL_EVERY == 0:
                proportional = sum(_kilobytes(pid, "smaps_rollup", "Pss:") for pid in pids) / 1e3
                self.proportional_mb = max(self.proportional_mb, proportional)
            sample += 1


def _kilobytes(pid: int, file: str, field: str) -> float:
    """A field of /proc/{pid}/{file}, in units of 1,000 bytes; 0 when the process is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1.024
    return 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of `arlo compile`."""

    wall_s: float
    cpu_s: float  # of the process and all it waited for
    resident_mb: float
    proportional_mb: float
    largest_process_mb: float  # as the kernel counts it (ru_maxrss)
    processes: int
    summary: dict[str, Any]  # what --json printed
    steps: list[Step]


def environment(cache: Path, bytecode: Path) -> dict[str, str]:
    """The environment of a user with this cache, and with Python's compiled files in `bytecode`."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"ARLO_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(bytecode)}


def compile_once(command: Sequence[str], env: Mapping[str, str]) -> Run:
    """Run the command in this environment and measure it. Ends the bench when the build fails."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=env)
        assert process.stderr is not None
        lines: list[str] = []
        steps: list[Step] = []
        with MemoryPeak(process.pid) as peak, process.stderr:
            for line in process.stderr:
                lines.append(line)
                step = parse_step(line, time.monotonic() - start)
                if step is not None:
                    steps.append(step)
            _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed ({process.returncode}):\n{''.join(lines)[-3000:]}")
        output.seek(0)
        summary = json.load(output)
    return Run(
        wall_s=wall_s,
        cpu_s=used.ru_utime + used.ru_stime,
        resident_mb=peak.resident_mb,
        proportional_mb=peak.proportional_mb,
        largest_process_mb=used.ru_maxrss * 1.024 / 1e3,
        processes=peak.processes,
        summary=summary,
        steps=steps,
    )


def compile_command(case: Case, source: Path | str, lengths: str, out: Path) -> list[str]:
    """`arlo compile` for a case, with the defaults that users get."""
    command = [
        str(harness.binary("arlo")),
        "compile",
        str(source),
        "--out",
        str(out),
        "--lengths",
        lengths,
        "--beyond-limit",
    ]
    return [*command, "--engine", case.engine, "--precision", case.precision, "--json"]


def write_bert_base(folder: str) -> None:
    """A folder with a model of BERT-base's configuration, random weights, and a small real tokenizer."""
    from arlo.compile.quiet import known_noise_silenced
    from tests.fakes.tiny_model import write_tokenizer

    with known_noise_silenced():
        import torch
        import transformers

        torch.manual_seed(7)
        transformers.BertModel(transformers.BertConfig()).save_pretrained(folder)
    write_tokenizer(Path(folder))


def measure(case: Case, source: Path | str, lengths: str, work: Path, *, warm: int) -> dict[str, Any]:
    """One cold build and `warm` warm ones of another --out; removes what it built."""
    env = environment(work / "cache", work.parent / "bytecode")
    cold = compile_once(compile_command(case, source, lengths, work / "cold"), env)
    warms = [compile_once(compile_command(case, source, lengths, work / f"warm{n}"), env) for n in range(warm)]
    tools = Manifest.load(work / "cold").tools
    for folder in work.iterdir():
        shutil.rmtree(folder)
    figures = {"cold": _figures(cold), "runtimes": len(cold.summary["runtimes"]), "tools": dict(tools)}
    if warms:
        middle = sorted(warms, key=lambda run: run.wall_s)[len(warms) // 2]
        figures["warm"] = _figures(middle) | {"wall_s_each": [round(run.wall_s, 2) for run in warms]}
    return figures


def _figures(run: Run) -> dict[str, Any]:
    return {
        "wall_s": round(run.wall_s, 2),
        "cpu_s": round(run.cpu_s, 2),
        "resident_mb": round(run.resident_mb),
        "proportional_mb": round(run.proportional_mb),
        "largest_process_mb": round(run.largest_process_mb),
        "processes": run.processes,
        "repository_mb": round(run.summary["bytes"] / 1e6),
        "cached_steps": run.summary["cached_steps"],
        "time_line_s": time_line(run.steps, run.wall_s),
    }


def summarise(case: Case, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of times and the largest memory over the rounds, with the round of the median cold time in full."""
    ordered = sorted(rounds, key=lambda each: each["cold"]["wall_s"])
    figures: dict[str, Any] = {
        "cold_s": statistics.median(each["cold"]["wall_s"] for each in rounds),
        "resident_mb": max(each["cold"]["resident_mb"] for each in rounds),
        "proportional_mb": max(each["cold"]["proportional_mb"] for each in rounds),
    }
    if "warm" in rounds[0]:
        figures["warm_s"] = statistics.median(s for each in rounds for s in each["warm"]["wall_s_each"])
    bars = {"resident_mb": MEMORY_BAR_MB}
    if case.model == "minilm":
        bars |= {"cold_s": COLD_BAR_S, "warm_s": WARM_BAR_S}
    figures["bars_missed"] = sorted(name for name, bar in bars.items() if figures.get(name, 0.0) >= bar)
    return figures | {"rounds": len(rounds), "middle_round": ordered[len(ordered) // 2]}


def show(name: str, figures: dict[str, Any]) -> None:
    """One run of a case, for people."""
    for kind in ("cold", "warm"):
        if kind not in figures:
            continue
        run = figures[kind]
        largest = ", ".join(f"{step} {seconds:.1f}" for step, seconds in list(run["time_line_s"].items())[:6])
        print(
            f"{name:28} {kind} {run['wall_s']:6.2f} s, CPU {run['cpu_s']:6.2f} s, {run['resident_mb']:5} MB resident "
            f"({run['proportional_mb']} proportional, {run['processes']} processes); {largest}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="cold builds of each case (default: 3)")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name contains it, nothing written")
    parser.add_argument("--quick", action="store_true", help="one round, two lengths, nothing written")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    cases = [case for case in CASES if args.only in case.name]
    if not cases:
        parser.error(f"no case contains {args.only!r}: {', '.join(case.name for case in CASES)}")
    found: dict[str, list[dict[str, Any]]] = {case.name: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        sources: dict[str, Path | str] = {"minilm": DEMO_MODEL}
        if any(case.model == "bert-base" for case in cases):
            # In a process of its own: the kernel counts what this one held among what its children held at most.
            sources["bert-base"] = Path(folder) / "bert-base"
            code = "import sys; from benchmarks.compile_time import write_bert_base; write_bert_base(sys.argv[1])"
            subprocess.run([sys.executable, "-c", code, str(sources["bert-base"])], check=True, cwd=harness.ROOT)
        work.mkdir()
        for engine in dict.fromkeys(case.engine for case in cases):  # fills Python's compiled files
            measure(Case(model="minilm", engine=engine), DEMO_MODEL, "32", work, warm=0)
        for _ in range(rounds):
            for case in cases:
                timed = case.model == "minilm"
                lengths = EIGHT_LENGTHS if timed and not args.quick else FEW_LENGTHS
                figures = measure(case, sources[case.model], lengths, work, warm=WARM_RUNS if timed else 0)
                show(case.name, figures)
                found[case.name].append(figures)
    results = {case.name: summarise(case, found[case.name]) for case in cases}
    for name, figures in results.items():
        warm = f", warm {figures['warm_s']:.2f} s" if "warm_s" in figures else ""
        missed = f"; over the bar: {', '.join(figures['bars_missed'])}" if figures["bars_missed"] else ""
        print(f"{name:28} cold {figures['cold_s']:.1f} s{warm}, {figures['resident_mb']} MB{missed}")
    if not args.quick and not args.only:
        bars = {"cold_s": COLD_BAR_S, "warm_s": WARM_BAR_S, "resident_mb": MEMORY_BAR_MB}
        command = "python -m benchmarks.compile_time " + " ".join(sys.argv[1:])
        print(harness.save("compile_time", command.strip(), {"bars": bars, "cases": results}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
