"""Small pipelines as readable text, followed by hand: each story in pipeline/ happens exactly as it is told.

As in simulate_story.py: blocks of commands, `----`, and what is seen. Roots are r1, r2, ... in order of arrival.
Commands:

    flow [router=plan] [drop=slack] [on_drop=fail] [slo=100ms] [hop=0ms]
    stage NAME variant=ACCURACY:TIME ...             parents first; the first one is the entry
    edge FROM TO children=N,...                      by variant of FROM; whole numbers
    plan [demand=10] [price=0] [share=F,...] [budget=TIME,...]     by prefix, and by variant; shares in the core's order
    worker VARIANT [x2]                              variants are numbered from 0, stage by stage
    arrive TIME [x2]    at TIME    fail w0    end
    roots    visits                                  what is seen
"""

from __future__ import annotations

import numpy as np

from arlo import _core
from tests.golden.story import OUTCOMES, ms, ns

REASONS = ("budget", "deadline", "overload", "fanout", "failed", "evicted")


class Story:
    """Runs commands against a simulation of a pipeline and tells what is seen."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.names: list[str] = []
        self.stages: list[list[tuple[int, float, int, float]]] = []
        self.edges: list[tuple[int, int, list[float]]] = []
        self.sim: _core.Simulation | None = None
        self.runtimes: list[int] = []

    def run(self, line: str) -> list[str]:
        command, *words = line.split()
        plain = [word for word in words if "=" not in word]
        options = [word.split("=", 1) for word in words if "=" in word]
        told: list[str] | None = getattr(self, f"do_{command}")(plain, options)
        return told or []

    def do_flow(self, _: list[str], options: list[list[str]]) -> None:
        self.options = dict(options)

    def do_stage(self, plain: list[str], options: list[list[str]]) -> None:
        self.names.append(plain[0])
        self.stages.append([])
        for _, value in options:
            accuracy, time = value.split(":")
            number = sum(map(len, self.stages))
            self.stages[-1].append((number, float(accuracy), ns(time), ns(time) / 1e9))

    def do_edge(self, plain: list[str], options: list[list[str]]) -> None:
        children = [float(x) for x in options[0][1].split(",")]
        self.edges.append((self.names.index(plain[0]), self.names.index(plain[1]), children))

    def engine(self) -> _core.Simulation:
        if self.sim is None:
            options = self.options
            slo = ns(options.get("slo", "100ms"))
            drop = options.get("drop", "slack")
            self.sim = _core.Simulation("late", slo=slo, max_queued=1 << 20, record=True)
            for stage in self.stages:
                for number, _, time, _ in stage:
                    self.runtimes.append(self.sim.add_runtime(1, 100, [(1, 1, time)], variant=number))
            spec = _core.Pipeline(
                self.stages,
                [(a, b, children, ns(options.get("hop", "0"))) for a, b, children in self.edges],
                router=options.get("router", "plan"),
                drop=drop,
                on_drop=options.get("on_drop", "fail"),
            )
            draws = [("constant", [1.0] * len(c), c, [], 1000, []) for _, _, c in self.edges]
            self.sim.set_pipeline(spec, draws, deadline=slo if drop == "slack" else None)
        return self.sim

    def do_plan(self, _: list[str], options: list[list[str]]) -> None:
        given = dict(options)
        self.engine().plan(
            _core.PipelinePlan(
                demand=float(given.get("demand", "10")),
                price=float(given.get("price", "0")),
                share=[float(x) for x in given["share"].split(",")] if "share" in given else [],
                budget=[ns(x) for x in given["budget"].split(",")] if "budget" in given else [],
            )
        )

    def do_worker(self, plain: list[str], _: list[list[str]]) -> None:
        sim = self.engine()
        for _ in range(int(plain[1][1:]) if len(plain) > 1 else 1):
            sim.add_worker(self.runtimes[int(plain[0])], sim.now)

    def do_arrive(self, plain: list[str], _: list[list[str]]) -> None:
        count = int(plain[1][1:]) if len(plain) > 1 else 1
        self.engine().feed(np.full(count, ns(plain[0])), np.ones(count, np.int32))

    def do_at(self, plain: list[str], _: list[list[str]]) -> None:
        self.engine().advance(ns(plain[0]))

    def do_fail(self, plain: list[str], _: list[list[str]]) -> None:
        self.engine().fail(int(plain[0][1:]))

    def do_end(self, _: list[str], __: list[list[str]]) -> list[str]:
        self.engine().finish()
        return [f"ends at {ms(self.engine().now)}"]

    def do_roots(self, _: list[str], __: list[list[str]]) -> list[str]:
        columns, lines = self.engine().columns(), []
        for i, outcome in enumerate(columns["outcome"]):
            line = f"r{i + 1} ({ms(columns['arrived_ns'][i])}) " + (OUTCOMES[outcome] if outcome < 5 else "is not done")
            if columns["latency_ns"][i] >= 0:
                line += f" after {ms(columns['latency_ns'][i])}, accuracy {columns['accuracy'][i]:.4g}"
            if columns["reason"][i] >= 0:
                line += f", dropped: {REASONS[columns['reason'][i]]}"
            lines.append(line)
        return lines

    def do_visits(self, _: list[str], __: list[list[str]]) -> list[str]:
        totals = self.engine().pipeline_totals()
        counts = iter(totals["visits"])
        lines = [
            f"{name}: " + ", ".join(str(next(counts)) for _ in stage)
            for name, stage in zip(self.names, self.stages, strict=True)
        ]
        drops = ", ".join(f"{count} {reason}" for reason, count in totals["dropped"].items() if count)
        return [*lines, f"rerouted {totals['rerouted']}, dropped {drops or 'none'}"]
