"""What the simulator itself takes: the paper's largest scenario under all four schemes, time and memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

from arlo.clock import monotonic_s
from arlo.simulator.run import run as simulate
from benchmarks.papers.arlo.cells import PAPERS, Context
from benchmarks.papers.arlo.experiment import Experiment, Outcome, Row, Table, Target
from benchmarks.papers.arlo.latency import AT_SCALE

PAPER = {
    "wall": Target(
        quantity="25k req/s x 600 s on 300 GPUs, all four schemes", paper=60.0, unit="s", where="bar", aim="at_most"
    ),
    "memory": Target(quantity="the same: peak resident memory", paper=2.0, unit="GB", where="bar", aim="at_most"),
    "rate": Target(quantity="simulated requests per second of wall time", paper=2e6, unit="req/s", where="bar"),
}


def measure(duration_s: float) -> dict[str, float]:
    """In this process: wall seconds of each scheme and of all, requests, and the peak of resident memory in GB."""
    cluster = AT_SCALE["large"].but(duration_s=duration_s)
    took: dict[str, float] = {}
    requests = of_arlo = 0
    for name in PAPERS:
        began_s = monotonic_s()
        result = simulate(cluster.scenario(name))
        took[name] = monotonic_s() - began_s
        requests += result.requests
        of_arlo = result.requests if name == "paper" else of_arlo
    # ru_maxrss is inherited from whoever started this process, so the kernel's own high-water mark is read instead.
    status = Path("/proc/self/status")
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if status.exists():
        peak_kb = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return {
        **took,
        "wall": sum(took.values()),
        "requests": float(requests),
        "paper_requests": float(of_arlo),
        "memory": peak_kb / 1e6,
    }


def run(context: Context) -> Outcome:
    """In a process of its own."""
    duration_s = context.pick(600.0, 2.0)
    command = [sys.executable, "-m", "benchmarks.papers.arlo.speed", str(duration_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-500:]}")
    found = json.loads(done.stdout)
    context.simulated += int(found["requests"])
    return Outcome(
        rows=[
            Row(target="wall", ours=found["wall"], note="Traces generated in this time too; one process, one core."),
            Row(target="memory", ours=found["memory"], note="Requests are drawn and fed some seconds at a time."),
            Row(
                target="rate",
                ours=found["paper_requests"] / found["paper"],
                note=f"Arlo as the paper has it, {found['paper_requests'] / 1e6:.0f} million requests; drawing them is "
                "in the time.",
            ),
        ],
        tables=[
            Table(
                title="Seconds",
                columns=["scheme", "s"],
                rows=[[name, f"{found[name]:.2f}"] for name in (*PAPERS, "wall")],
            )
        ],
    )


EXPERIMENT = Experiment(
    name="speed",
    title="The simulator's own time and memory",
    text=(
        "Not in the paper: BERT-large at 25,000 requests per second for ten minutes on 300 GPUs, ST, DT, INFaaS and "
        "Arlo one after the other in one process, the requests drawn anew for each. Bars: 60 s and 2 GB."
    ),
    paper=PAPER,
    run=run,
)


if __name__ == "__main__":
    print(json.dumps(measure(float(sys.argv[1]))))
