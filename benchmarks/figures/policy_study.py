"""The policy study: dispatch policies on equal deployments and equal requests, in the simulator.

    python -m benchmarks.figures.policy_study [--short] [--json] [--jobs 2]

Two parts. *The bar*: at the highest load at which `rs` keeps 99 % SLO attainment, the others against it. *The study*:
each setting of policy_settings.py over loads and sizes. Figures are ratios to `rs` (geometric means over the seeds, the
same requests for every policy). docs/dispatch-policies.md tells what comes of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from arlo.report.progress import LiveBar
from arlo.simulator.report.result import Result
from arlo.simulator.run import run_many
from arlo.simulator.scenario.scenario import Scenario
from benchmarks import harness
from benchmarks.figures.policy_settings import (
    Setting,
    deployment,
    full_rate,
    mix,
    relaxed,
    scenario,
    settings,
    times_ms,
)

NAME = "policy_study"
POLICIES = ("rs", "ilb", "ig", "eft", "late")
OURS = "late"
ATTAINMENT = 0.99
BAR = {"mean": 0.75, "p98": 0.60}  # at most, of rs
TOLERANCE = 1.02  # nowhere worse than this, of rs
# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_GRID = tuple(round(0.98 - 0.04 * i, 2) for i in range(19))  # downwards


class Runner:
    """Runs scenarios over processes and shows how far it is."""

    def __init__(self, jobs: int, *, quiet: bool = False) -> None:
        self._jobs = jobs
        self._quiet = quiet
        self.requests = 0

    def run(self, what: str, scenarios: Sequence[Scenario]) -> list[Result]:
        """The results, in order."""

        with LiveBar(Console(stderr=True, quiet=self._quiet), what) as bar:
            results = run_many(
                scenarios, self._jobs, lambda done, of: bar.show(done, of, f"{what}  {done} of {of} runs")
            )
        self.requests += sum(r.requests for r in results)
        return results


def ratio(ours: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of the paired ratios, and its 95 % confidence interval (nan with one pair)."""
    logs = np.log(np.array(ours) / np.array(base))
    centre = float(logs.mean())
    half = _T[len(logs) - 1] * float(logs.std(ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)


def bar_settings() -> list[Setting]:
    """Stable and Bursty, lengths that keep their distribution and that drift, allocated both ways."""
    names = ("plain", "Eq. 1 allocation", "drift")
    found = [s for s in settings() if s.group in names and ":" not in s.drift and not s.name.startswith("drift over")]
    found += [
        dataclasses.replace(s, name=s.name.replace("drift", "drift, Eq. 1"), group="drift, Eq. 1", objective="paper")
        for s in found
        if s.group == "drift"
    ]
    return found


def find_loads(runner: Runner, cells: Sequence[tuple[Setting, int]], seeds: Sequence[int]) -> dict[Any, float]:
    """The highest load at which rs keeps the attainment, to 0.01; by grid and bisection, as it need not fall steadily.

    The deployment is solved for each load anew. nan where no load of the grid will do.
    """

    def attained(what: str, wanted: Sequence[tuple[Setting, int, float]]) -> list[bool]:
        made = [scenario(s, g, load, "rs", seed) for s, g, load in wanted for seed in seeds]
        found = [r.slo_attainment for r in runner.run(what, made)]
        mean = np.array(found).reshape(len(wanted), len(seeds)).mean(axis=1)
        return [bool(m >= ATTAINMENT) for m in mean]

    keeps = attained("search", [(s, g, load) for s, g in cells for load in _GRID])
    best: dict[Any, float] = {}
    for i, cell in enumerate(cells):
        good = [load for load, ok in zip(_GRID, keeps[i * len(_GRID) :], strict=False) if ok]
        best[cell] = max(good, default=math.nan)
    for step in (0.02, 0.01):
        tried = [(s, g, round(best[s, g] + step, 2)) for s, g in cells if not math.isnan(best[s, g])]
        for (s, g, load), ok in zip(tried, attained("bisection", tried), strict=True):
            if ok:
                best[s, g] = load
    return best


def measure_bar(runner: Runner, *, workers: Sequence[int], seeds: int) -> list[dict[str, Any]]:
    """A row for each deployment at the load found."""
    cells = [(s, g) for s in bar_settings() for g in workers]
    loads = find_loads(runner, cells, range(101, 103))
    rows = [(s, g, loads[s, g]) for s, g in cells if not math.isnan(loads[s, g])]
    own = range(1, seeds + 1)
    runs = {(i, p, n): scenario(s, g, load, p, n) for i, (s, g, load) in enumerate(rows) for p in POLICIES for n in own}
    for i, (s, g, load) in enumerate(rows):
        for n in own:
            whole = scenario(s, g, load, OURS, n)
            for level in range(8):
                if (part := relaxed(whole, level)) is not None:
                    runs[i, f"relaxed {level}", n] = part
    done = dict(zip(runs, runner.run("the bar", list(runs.values())), strict=True))
    return [_bar_row(s, g, load, {(p, n): done[j, p, n] for j, p, n in done if j == i}, own)
            for i, (s, g, load) in enumerate(rows)]  # fmt: skip


def _bar_row(
    s: Setting, g: int, load: float, done: dict[tuple[str, int], Result], seeds: Sequence[int]
) -> dict[str, Any]:
    rate = load * full_rate(s, g)
    row: dict[str, Any] = {
        "setting": s.name,
        "workers": g,
        "load": load,
        "rate": round(rate),
        "deployment": deployment(s, g, rate),
        "seeds": len(seeds),
        "rs": _plain([done["rs", n] for n in seeds]),
        "against_rs": {},
    }
    for policy in POLICIES[1:]:
        row["against_rs"][policy] = {
            figure: [
                round(x, 4)
                for x in ratio(
                    [getattr(done[policy, n], f"{figure}_ms") for n in seeds],
                    [getattr(done["rs", n], f"{figure}_ms") for n in seeds],
                )
            ]
            for figure in ("mean", "p98")
        } | {"attainment": round(float(np.mean([done[policy, n].slo_attainment for n in seeds])), 5)}
    bound = [_relaxed_mean(s, g, rate, {p: r for (p, m), r in done.items() if m == n}) for n in seeds]
    row["relaxed_mean"] = round(ratio(bound, [done["rs", n].mean_ms for n in seeds])[0], 4)
    ours = row["against_rs"][OURS]
    row["reached"] = {figure: ours[figure][0] <= most for figure, most in BAR.items()}
    return row


def _relaxed_mean(s: Setting, g: int, rate: float, done: dict[str, Result]) -> float:
    """The mean, when some level and those above have its instances for themselves and are freed of their lengths, and
    the others need not wait at all; the worst of the levels."""
    share, alone, instances = np.array(mix(s.length, s.drift)), times_ms(s) + 0.8, deployment(s, g, rate)
    for level in range(6, -1, -1):  # a level without instances is served by the next
        if instances[level] == 0:
            alone[level] = alone[level + 1]
    values = []
    for level in range(8):
        if (part := done.get(f"relaxed {level}")) is not None and part.requests:
            mine = part.requests / done["rs"].requests
            below = share[:level] @ alone[:level] / share[:level].sum() if level else 0.0
            values.append(mine * part.mean_ms + (1 - mine) * below)
    return float(max(values))


def _plain(results: Sequence[Result]) -> dict[str, float]:
    return {
        "mean_ms": round(float(np.mean([r.mean_ms for r in results])), 3),
        "p98_ms": round(float(np.mean([r.p98_ms for r in results])), 2),
        "attainment": round(float(np.mean([r.slo_attainment for r in results])), 5),
        "demoted": round(float(np.mean([r.demoted for r in results])), 4),
    }


def measure_study(runner: Runner, chosen: Sequence[Setting], *, seeds: int) -> list[dict[str, Any]]:
    """A row for each setting, size and load."""
    policies = [p for p in POLICIES if p != "ilb"]
    cells = [(s, g, load) for s in chosen for g in s.workers for load in s.loads]
    keys = [(i, p, n) for i in range(len(cells)) for p in policies for n in range(1, seeds + 1)]
    runs = [scenario(*cells[i], p, n) for i, p, n in keys]
    done = dict(zip(keys, runner.run("the study", runs), strict=True))
    rows = []
    for i, (s, g, load) in enumerate(cells):
        found = {p: [done[i, p, n] for n in range(1, seeds + 1)] for p in policies}
        row: dict[str, Any] = {
            "setting": s.name,
            "group": s.group,
            "workers": g,
            "load": load,
            "rs": _plain(found["rs"]),
        }
        for p in policies[1:]:
            row[p] = {
                "mean": round(ratio([r.mean_ms for r in found[p]], [r.mean_ms for r in found["rs"]])[0], 4),
                "p98": round(ratio([r.p98_ms for r in found[p]], [r.p98_ms for r in found["rs"]])[0], 4),
                "attainment": round(float(np.mean([r.slo_attainment for r in found[p]])), 5),
            }
        rows.append(row)
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By setting and over all: geometric mean and worst case of the ratios to rs, and of OURS to the best other one."""
    names = [*dict.fromkeys(row["setting"] for row in rows)]
    found = []
    for name in [*names, "all"]:
        here = [row for row in rows if name in ("all", row["setting"])]
        entry: dict[str, Any] = {"setting": name, "cells": len(here)}
        for p in ("ig", "eft", "late"):
            for figure in ("mean", "p98"):
                values = np.array([row[p][figure] for row in here])
                entry[f"{p}_{figure}"] = round(float(np.exp(np.log(values).mean())), 4)
                entry[f"{p}_{figure}_worst"] = round(float(values.max()), 4)
        found.append(entry)
    return found


def losses(rows: Sequence[dict[str, Any]], policy: str = OURS) -> list[dict[str, Any]]:
    """Cells in which the policy is worse than rs by more than the tolerance, the worst first."""
    found = [
        {
            **{k: row[k] for k in ("setting", "workers", "load", "rs")},
            "mean": row[policy]["mean"],
            "p98": row[policy]["p98"],
        }
        for row in rows
        if max(row[policy]["mean"], row[policy]["p98"]) > TOLERANCE
    ]
    return sorted(found, key=lambda row: -max(row["mean"], row["p98"]))


def measure(*, short: bool, jobs: int, quiet: bool = False) -> dict[str, Any]:
    """Everything; `short` has fewer settings, loads and seeds, so its figures are rough."""
    runner = Runner(jobs, quiet=quiet)
    chosen = settings()
    if short:
        chosen = [dataclasses.replace(s, workers=s.workers[:1], loads=(0.8,)) for s in chosen]
    study = measure_study(runner, chosen, seeds=1 if short else 2)
    bar = [] if short else measure_bar(runner, workers=(10, 90), seeds=6)
    return {
        "short": short,
        "simulated_requests": runner.requests,
        "bar": bar,
        "summary": summary(study),
        "losses": losses(study),
        "study": study,
    }


def rows() -> list[dict[str, Any]]:
    """The kept rows of the bar, for a report."""
    return list(_kept()["bar"])


def figures() -> dict[str, Any]:
    """The plots of the kept results, plotly figures by name."""
    from benchmarks.figures.policy_plots import plots

    return plots(_kept())


def _kept() -> dict[str, Any]:
    path = harness.RESULTS / f"{NAME}.json"
    if not path.exists():
        raise SystemExit(f"{path} is missing: run python -m benchmarks.figures.policy_study")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def report(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = []
    if found["bar"]:
        lines.append("At the highest load at which rs keeps 99 %: mean and p98 over those of rs (95 % interval)")
        for row in found["bar"]:
            ours = row["against_rs"]
            cells = "  ".join(f"{p} {ours[p]['mean'][0]:.3f} {ours[p]['p98'][0]:.3f}" for p in ("ig", "eft", "late"))
            half = [f"{ours[OURS][f][1]:.3f}-{ours[OURS][f][2]:.3f}" for f in ("mean", "p98")]
            lines.append(
                f"{row['workers']:3} {row['setting']:26} load {row['load']:.2f} {row['rate']:6}/s  rs "
                f"{row['rs']['mean_ms']:7.2f} {row['rs']['p98_ms']:7.1f} ms  {cells} ({half[0]}, {half[1]})  "
                f"relaxed {row['relaxed_mean']:.3f}"
            )
    lines.append("\nOver all loads and sizes: geometric mean (worst) of the ratios to rs")
    for row in found["summary"]:
        cells = "  ".join(
            f"{p} {row[f'{p}_{f}']:.3f} ({row[f'{p}_{f}_worst']:.3f})"
            for p in ("ig", "eft", "late")
            for f in ("mean", "p98")
        )
        lines.append(f"{row['setting']:36} {row['cells']:3}  {cells}")
    lines.append(
        f"\nWorse than rs by more than {100 * (TOLERANCE - 1):.0f} %: "
        f"{len(found['losses'])} cells of {len(found['study'])}"
    )
    for row in found["losses"]:
        lines.append(
            f"{row['setting']:36} {row['workers']:3} load {row['load']:.2f}  "
            f"mean {row['mean']:.3f} p98 {row['p98']:.3f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one size, load and seed of each setting; nothing is kept")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    args = parser.parse_args(arguments)
    found = measure(short=args.short, jobs=args.jobs)
    print(json.dumps(found) if args.json else report(found))
    if not args.short:
        path = harness.save(NAME, "python -m benchmarks.figures.policy_study", found)
        sys.stderr.write(f"-> {path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
