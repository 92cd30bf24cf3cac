"""Small simulations as readable text, followed by hand: each story in simulate/ happens exactly as it is told.

A story is a text file of blocks. A block is commands, a line `----`, and what is seen, up to an empty line. Lines that
start with `#` are comments; they hold the arithmetic. Requests are r1, r2, ... in order of arrival, workers w0, w1, ...
Commands:

    policy NAME [slo=150ms] [timeout=1s] [overhead=0.8ms] [out=0.1ms] [back=0.1ms] [retries=2] [max_queued=4096]
    runtime LENGTH takes=5ms [capacity=100] [inflight=1] [batch=4:10ms] [dynamic=64:1ms]
    worker LENGTH [at=0ms]            ready at that time
    arrive 0ms len=90 [times=1]
    at 10ms                           lets everything happen that is due before
    replace w0 LENGTH delay=1000ms    remove w0    fail w0 [restart=5ms]    slow w0 2
    end                               lets everything happen
    requests    workers    totals     what is seen
"""

from __future__ import annotations

import numpy as np

from arlo import _core
from tests.golden.story import OUTCOMES, ms, ns

STATES = ("starting", "serving", "draining", "gone")


class Story:
    """Runs commands against a simulation and tells what is seen."""

    sim: _core.Simulation

    def __init__(self) -> None:
        self.runtimes: dict[int, int] = {}  # runtime by max_length

    def run(self, line: str) -> list[str]:
        command, *words = line.split()
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        told: list[str] | None = getattr(self, f"do_{command}")(*plain, **options)
        return told or []

    def do_policy(self, name: str, **options: str) -> None:
        times = {"slo": "150ms", "overhead": "0", "out": "0", "back": "0"} | options
        self.sim = _core.Simulation(
            name,
            slo=ns(times["slo"]),
            timeout=ns(options["timeout"]) if "timeout" in options else None,
            overhead=ns(times["overhead"]),
            hop_out=ns(times["out"]),
            hop_back=ns(times["back"]),
            retries=int(options.get("retries", 2)),
            max_queued=int(options.get("max_queued", 4096)),
            record=True,
        )

    def do_runtime(self, length: str, takes: str, **options: str) -> None:
        points = [(int(length), 1, ns(takes))]
        max_batch = 1
        if "batch" in options:
            rows, took = options["batch"].split(":")
            max_batch = int(rows)
            points.append((int(length), max_batch, ns(took)))
        if "dynamic" in options:
            tokens, took = options["dynamic"].split(":")
            points.append((int(tokens), 1, ns(took)))
        self.runtimes[int(length)] = self.sim.add_runtime(
            int(length),
            int(options.get("capacity", 100)),
            points,
            max_batch=max_batch,
            dynamic="dynamic" in options,
            inflight_limit=int(options.get("inflight", 1)),
        )

    def do_worker(self, length: str, at: str = "0") -> None:
        self.sim.add_worker(self.runtimes[int(length)], ns(at))

    def do_arrive(self, at: str, len: str, times: str = "1") -> None:
        self.sim.feed(np.full(int(times), ns(at)), np.full(int(times), int(len), np.int32))

    def do_at(self, time: str) -> None:
        self.sim.advance(ns(time))

    def do_replace(self, worker: str, length: str, delay: str) -> None:
        self.sim.replace(int(worker[1:]), self.runtimes[int(length)], ns(delay))

    def do_remove(self, worker: str) -> None:
        self.sim.remove(int(worker[1:]))

    def do_fail(self, worker: str, restart: str | None = None) -> None:
        self.sim.fail(int(worker[1:]), None if restart is None else ns(restart))

    def do_slow(self, worker: str, factor: str) -> None:
        self.sim.slow(int(worker[1:]), float(factor))

    def do_end(self) -> list[str]:
        self.sim.finish()
        return [f"ends at {ms(self.sim.now)}"]

    def do_requests(self) -> list[str]:
        columns = self.sim.columns()
        lines = []
        for i, outcome in enumerate(columns["outcome"]):
            line = f"r{i + 1} (len {columns['length'][i]}, {ms(columns['arrived_ns'][i])})"
            if outcome >= 5:
                lines.append(f"{line} is not done")
                continue
            line += f" {OUTCOMES[outcome]}"
            if columns["latency_ns"][i] >= 0:
                line += f" after {ms(columns['latency_ns'][i])}"
            if columns["wait_ns"][i] >= 0:
                began = columns["arrived_ns"][i] + columns["wait_ns"][i]
                line += f", began at {ms(began)} on w{columns['worker'][i]} ({self.level(columns['runtime'][i])})"
            lines.append(line)
        return lines

    def do_workers(self) -> list[str]:
        columns = self.sim.workers()
        lines = []
        for i, state in enumerate(columns["state"]):
            line = f"w{i} ({self.level(columns['runtime'][i])}) {STATES[state]} since {ms(columns['since_ns'][i])}:"
            line += f" {columns['executing'][i]} execute, {columns['waiting'][i]} wait"
            lines.append(f"{line}, busy {ms(columns['busy_ns'][i])}, served {columns['served'][i]}")
        return [*lines, f"{self.sim.queued} wait at the scheduler, {self.sim.in_flight} in flight"]

    def do_totals(self) -> list[str]:
        totals = self.sim.totals()
        counts = ", ".join(f"{totals[key]:g} {key}" for key in ("arrived", "demoted", "retried"))
        outcomes = (f"{totals[name.replace(' ', '_')]:g} {name}" for name in OUTCOMES)
        sums = ", ".join(f"{key} {ms(int(totals[f'{key}_sum_ns']))}" for key in ("latency", "wait", "execute"))
        return [counts, ", ".join(outcomes), sums, f"{totals['tokens']:g} tokens, {totals['padded_tokens']:g} padded"]

    def level(self, runtime: int) -> int:
        return next(length for length, id_ in self.runtimes.items() if id_ == runtime)
