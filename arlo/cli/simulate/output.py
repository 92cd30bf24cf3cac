"""The output of `arlo simulate`: one run, several compared, JSON, and caveats for the reader of the figures."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.cli.simulate.load import least_workers, offered_workers
from arlo.cli.text import print_json
from arlo.report.numbers import ms, share

if TYPE_CHECKING:
    from rich.text import Text

    from arlo.cli.simulate.flags import Plan
    from arlo.simulator.report.result import Result
    from arlo.simulator.scenario.build import Built

# Below this share on time, or above this share of time executing, the output checks if the load can be carried at all.
DOUBT_ATTAINMENT, DOUBT_UTILIZATION = 0.97, 0.97
GOAL, LOST = 0.99, 0.5


def notes(built: Built, result: Result) -> list[str]:
    """Warnings: lengths that no runtime takes, a load that the workers cannot carry, too few workers for the SLO."""
    scenario, said = built.scenario, []
    if result.requests == 0:
        return ["no request arrived: a longer --duration-s, a shorter --warmup-s or a higher --rate gives some"]
    attainment = result.slo_attainment
    if built.notes:  # lengths that no runtime takes: no number of workers changes that
        rejected = result.outcomes["rejected"]
        said = [f"{note}: {share(rejected / result.requests)} of the requests" for note in built.notes]
        attainment = result.outcomes["on_time"] / max(result.requests - rejected, 1)
    offered = 0.0
    if scenario.served is not None:
        attainment = result.slo_attainment
        return [*built.notes, *([f"{share(attainment)} on time"] if attainment < GOAL else [])]
    if attainment < DOUBT_ATTAINMENT or result.utilization > DOUBT_UTILIZATION:
        offered = offered_workers(scenario)
    slowest = max(ms for runtime in scenario.runtimes for _, batch, ms in runtime.points if batch == 1)
    if least_workers(offered) > max(result.workers_mean, scenario.workers):
        said.append(
            f"overload: the load needs at least {least_workers(offered)} workers (it keeps {offered:.1f} busy even "
            f"without padding), and there are {_workers(result)}: queues grow as long as it lasts"
        )
    elif slowest + scenario.overhead_ms > scenario.slo_ms:
        said.append(
            f"the slowest runtime takes {slowest:g} ms, with the overhead more than the SLO of {scenario.slo_ms:g} ms: "
            "its requests are late whatever the number of workers"
        )
    elif attainment < LOST:
        said.append(
            f"only {share(result.slo_attainment)} on time, though {offered:.1f} of {scenario.workers} workers could "
            "carry the load: the scheme, its allocation or its policy do not use them; compare others"
        )
    elif attainment < GOAL:
        advice = f"--find-workers says how many GPUs keep {GOAL:.0%}"
        if scenario.scale.kind != "none":
            advice = "scaling reacts to what has happened: more --min-workers, or another kind of --scaling, may do"
        said.append(f"{share(result.slo_attainment)} on time; {advice}")
    return said


def _workers(result: Result) -> str:
    mean = f"{result.workers_mean:.4g}"
    return mean if result.workers_max == round(result.workers_mean, 3) else f"{mean} on average"


def as_dict(plan: Plan, result: Result, said: list[str], price: float | None) -> dict[str, Any]:
    """One run as JSON: the figures, the varied flags, the warnings."""
    return {**result.summary(), **cost_json(result, price), "varied": plan.varied, "warnings": said}


def cost_json(result: Result, price: float | None) -> dict[str, Any]:
    """The cost if a price is given."""
    if price is None:
        return {}
    month, million = (float(f"{value:.6g}") if math.isfinite(value) else None for value in cost(result, price))
    return {"cost_per_month": month, "cost_per_million_on_time": million}


def print_as_json(
    asked: Sequence[Plan], results: Sequence[Result], said: Sequence[list[str]], price: float | None
) -> None:
    """One object, or a list of them under `runs`."""
    runs = [as_dict(plan, result, each, price) for plan, result, each in zip(asked, results, said, strict=True)]
    print_json(runs[0] if len(runs) == 1 else {"runs": runs})


def describe(built: Built, *, short: bool = False) -> str:
    """Three lines: cluster, where its latencies come from (`short`: their name only), workload."""
    scenario = built.scenario
    lengths = sorted({runtime.max_length for runtime in scenario.runtimes})
    shown = ", ".join(map(str, lengths)) if len(lengths) <= 8 else f"{lengths[0]} ... {lengths[-1]} ({len(lengths)})"
    if scenario.served is not None:
        held = "everything on every worker" if scenario.bundle == "all" else "each worker has its part"
        return (
            f"cluster   {scenario.workers} GPUs, {held}, SLO {scenario.slo_ms:g} ms\n"
            f"latencies {built.latencies}\nrequests  {scenario.workload.describe()}"
        )
    kinds = {runtime.dynamic for runtime in scenario.runtimes}
    kind = "dynamic" if kinds == {True} else "static" if kinds == {False} else "static and dynamic"
    allocate = scenario.allocate
    how = "all on every worker" if scenario.bundle == "all" else f"{allocate.kind} allocation"
    if len(lengths) > 1 and allocate.kind in ("periodic", "oracle") and scenario.bundle == "one":
        how += f" every {allocate.period_s:g} s ({allocate.objective})"
    slo = ", ".join(f"{value:g}" for value in dict.fromkeys(slo_ms for _, slo_ms in scenario.of_runtimes()))
    scaling = f", scaling {scenario.scale.kind}" if scenario.scale.kind != "none" else ""
    return (
        f"cluster   {scenario.workers} GPUs, {kind} runtimes of {shown} tokens, dispatch {scenario.dispatch.policy}, "
        f"{how}{scaling}, SLO {slo} ms\n"
        f"latencies {built.latencies.partition(': ')[0] if short else built.latencies}\n"
        f"requests  {scenario.workload.describe()}"
    )


HOURS_A_MONTH = 730.0


def cost(result: Result, price: float) -> tuple[float, float]:
    """The cost of a month of such load, and of a million requests on time, in the unit of `price` per GPU-hour."""
    on_time = result.outcomes["on_time"]
    million = result.gpu_hours * price / on_time * 1e6 if on_time else math.nan
    return result.workers_mean * HOURS_A_MONTH * price, million


def print_one(built: Built, result: Result, said: list[str], price: float | None) -> None:
    """The tables of one run."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"[bold]{_escape(result.scenario)}", soft_wrap=True)
    console.print(_escape(describe(built)), soft_wrap=True)
    console.print()
    outcomes = "  ".join(f"{name} {count:,}" for name, count in result.outcomes.items() if count)
    console.print(
        f"[bold]{share(result.slo_attainment)}[/] of {result.requests:,} requests on time  "
        f"goodput {result.goodput_rps:,.1f}/s  {outcomes}",
        soft_wrap=True,
    )
    if result.bulk:
        console.print(
            f"beside them {result.bulk:,} requests of the class bulk: {result.bulk_answered:,} answered, "
            f"{result.bulk_rps:,.1f}/s"
            + ("" if result.bulk_mean_ms is None else f", after {ms(result.bulk_mean_ms)} ms on average"),
            soft_wrap=True,
        )
    if result.models:
        console.print(_models(result))
    _print_figures(console, result)
    latency = Table(box=None, pad_edge=False)
    for column in ("latency, ms", "mean", "p50", "p90", "p98", "p99", "max"):
        latency.add_column(column, justify="left" if column == "latency, ms" else "right")
    values = (result.mean_ms, result.p50_ms, result.p90_ms, result.p98_ms, result.p99_ms, result.max_ms)
    latency.add_row("arrival to answer", *(ms(value) for value in values))
    latency.add_row("  waiting", ms(result.mean_wait_ms))
    latency.add_row("  executing", ms(result.mean_execution_ms))
    console.print(latency)
    console.print()
    for line in histogram(result):
        console.print(line, soft_wrap=True)
    console.print()
    if not result.figures.more:
        console.print(_runtimes(result))
    console.print(
        f"\nGPUs {_workers(result)}, {result.gpu_hours:.4g} GPU-hours  executing {result.utilization:.1%} of the "
        f"time  padding {result.padding:.1%} of the computed tokens  demoted {result.demoted:.1%}\n"
        f"allocations {result.allocations}  replacements {result.replacements}"
        + (f"  retried {result.retried:,}" if result.retried else ""),
        soft_wrap=True,
    )
    if price is not None:
        month, million = cost(result, price)
        console.print(
            f"cost at {price:g} a GPU-hour: {month:,.0f} a month (730 h), {million:,.4g} for a million requests on time"
        )
    _print_notes(console, said)
    console.print(
        f"[dim]{result.requests:,} requests simulated in {result.wall_s:.2f} s: "
        f"{result.requests / max(result.wall_s, 1e-9):,.0f} a second",
        soft_wrap=True,
    )


def histogram(result: Result, rows: int = 10, width: int = 40) -> list[Text]:
    """Latencies in bars over equal steps of a logarithmic scale, and the share of answers up to each."""
    from rich.text import Text

    values, q = np.asarray(result.cdf_ms), np.asarray(result.cdf_q)
    if not len(values) or not math.isfinite(values[-1]) or values[-1] <= 0:
        return []
    low, high = max(float(values[0]), float(values[-1]) * 1e-6), float(values[-1])
    if high / low < 1.02:
        return [Text(f"all answers within {ms(low)} to {ms(high)} ms")]
    edges = np.geomspace(low, high, rows + 1)
    below = np.interp(edges, values, q)
    below[0], below[-1] = 0.0, 1.0
    parts = np.diff(below)
    lines = [Text(f"{'up to ms':>10}  {'share':>6}  {'in all':>7}", style="bold")]
    for edge, part, total in zip(edges[1:], parts, below[1:], strict=True):
        eighths = round(part / parts.max() * width * 8)
        bar = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
        late = edge > result.slo_ms
        lines.append(
            Text(f"{ms(float(edge)):>10}  {part:6.1%}  {total:7.2%}  ") + Text(bar, "red" if late else "green")
        )
    return lines


def _models(result: Result) -> Any:
    """The figures of each of several models."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("model", "requests", "SLO ms", "on time", "goodput/s", "mean ms", "p98 ms", "p99 ms", "unanswered"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for model in result.models:
        table.add_row(
            _escape(model["name"]),
            f"{model['requests']:,}",
            f"{model['slo_ms']:g}",
            share(model["slo_attainment"]),
            f"{model['goodput_rps']:,.1f}",
            *(ms(model[key]) for key in ("mean_ms", "p98_ms", "p99_ms")),
            f"{model['unanswered']:,}",
        )
    return table


def _runtimes(result: Result) -> Any:
    """Runtimes: their instances over time, and the rows they served."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("runtime", "instances", "served", "share", "demoted to it", "busy GPUs"):
        table.add_column(column, justify="left" if column == "runtime" else "right")
    served = sum(runtime["served"] for runtime in result.runtimes)
    end_s = max(float(result.timeline["time_s"][-1]), 1e-9) if len(result.timeline["time_s"]) else 1.0
    for runtime in result.runtimes:
        counts = result.timeline.get(f"instances.{runtime['name']}", np.zeros(0))
        table.add_row(
            str(runtime["name"]),
            span(counts),
            f"{runtime['served']:,}",
            f"{runtime['served'] / served:.1%}" if served else "-",
            f"{runtime['demoted']:,}",
            f"{runtime['busy_s'] / end_s:.2f}",
        )
    return table


def _print_figures(console: Any, result: Result) -> None:
    """Print the figures of answers: numbers in a line, shares and counts by name in one each."""
    if not result.figures.more:
        return
    figures = result.figures
    words = [f"accuracy {known_share(figures.accuracy)}", f"degraded {known_share(figures.degraded)}"]
    words += [f"utility {figures.utility:,.6g}"] if figures.utility is not None else []
    words += [] if result.joules is None else [f"joules of a request {result.joules:.3g}"]
    for name, value in figures.more.items():
        said = name.replace("_", " ")
        if isinstance(value, (int, float)):
            words += [f"{said} {value:.4g}"] if math.isfinite(value) else []
        elif isinstance(value, dict) and (known := {k: v for k, v in value.items() if not isinstance(v, dict) and v}):
            console.print(_escape(f"{said}: " + "  ".join(f"{k} {v:,.4g}" for k, v in known.items())), soft_wrap=True)
    console.print(_escape("  ".join(words)), soft_wrap=True)
    if "exits" in figures.more:
        shares = zip(figures.more["stages"], figures.more["exits"], strict=True)
        console.print(_escape("answered by: " + "  ".join(f"{stage} {share(of)}" for stage, of in shares)))


def span(counts: Any) -> str:
    """`4`, or `2-5` if it varied."""
    if not len(counts):
        return "-"
    low, high = int(np.min(counts)), int(np.max(counts))
    return str(low) if low == high else f"{low}-{high}"


COLUMNS = ("", "mean ms", "p98 ms", "on time", "goodput/s", "GPU-hours", "padding", "accuracy", "degraded", "utility",
           "joules")  # fmt: skip


def figures(result: Result) -> tuple[float, ...]:
    """The values of COLUMNS."""
    return (
        result.mean_ms,
        result.p98_ms,
        result.slo_attainment,
        result.goodput_rps,
        result.gpu_hours,
        result.padding,
        *(math.nan if value is None or not result.figures.more else value
          for value in (result.figures.accuracy, result.figures.degraded, result.figures.utility, result.joules)),
    )  # fmt: skip


def known_share(value: float | None) -> str:
    """The share, `-` if it is not known."""
    return "-" if value is None or math.isnan(value) else share(value)


_FORMS = (ms, ms, share, lambda v: f"{v:,.1f}", lambda v: f"{v:.4g}", lambda v: f"{v:.1%}", known_share, known_share,
          lambda v: f"{v:,.6g}", lambda v: f"{v:.3g}")  # fmt: skip
_POINTS = {2: 2, 5: 1, 6: 2, 7: 2}  # columns whose change is given in percentage points, and its digits


def row(result: Result, first: Result | None, changed: set[int]) -> list[Text]:
    """A line of the comparison, with the change against the first run in the columns `changed`."""
    from rich.text import Text

    cells = []
    base = figures(first) if first is not None else figures(result)
    for index, (value, other) in enumerate(zip(figures(result), base, strict=True)):
        text = Text(_FORMS[index](value))
        if index in changed:
            text.append(f" {change(index, value, other) if first is not None else '':>8}", "dim")
        cells.append(text)
    return cells


def change(index: int, value: float, other: float) -> str:
    """`-12.3%` against the other value, `x13` or `/250` if that is clearer, `+1.20 pt` of a share."""
    if not (math.isfinite(value) and math.isfinite(other)):
        return ""
    if index in _POINTS:
        return f"{100 * (value - other):+.{_POINTS[index]}f} pt"
    if not other:
        return ""
    if value > 10 * other:
        return f"x{value / other:,.0f}"
    return f"/{other / value:,.0f}" if 0 < value < other / 100 else f"{value / other - 1:+.1%}"


def print_comparison(
    made: Sequence[Built], results: Sequence[Result], said: Sequence[list[str]], price: float | None
) -> None:
    """A table with one line for each run."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    console.print(f"[bold]{len(results)} runs, compared with the first", soft_wrap=True)
    latencies = {each.latencies.partition(": ")[0] for each in made}
    for text in sorted(latencies) if len(latencies) <= 3 else []:
        console.print(f"latencies {_escape(text)}", soft_wrap=True)
    workloads = {each.scenario.workload.describe() for each in made}
    for text in sorted(workloads) if len(workloads) <= 3 else []:
        console.print(f"requests  {_escape(text)}", soft_wrap=True)
    console.print()
    wide = Console(highlight=False, width=1000)
    # In columns that hardly differ, a change would waste room; runs are compared by mean and p98.
    differ = {i for i in range(len(COLUMNS) - 1) if len({_FORMS[i](figures(r)[i]) for r in results}) > 1} | {0, 1}
    unknown = {i for i in range(len(_FORMS)) if all(math.isnan(figures(result)[i]) for result in results)}
    if any(result.figures.more for result in results):
        unknown |= {5}  # of rows that go on there is no padding
    table = _comparison(results, differ, price, hidden=unknown)
    if console.is_terminal and Measurement.get(wide, wide.options, table).maximum > console.width:
        table = _comparison(results, {0, 1}, price, hidden={3, *unknown})
    (console if console.is_terminal else wide).print(table)
    _print_notes(console, [f"{r.scenario}: {note}" for r, each in zip(results, said, strict=True) for note in each])
    requests, wall_s = sum(r.requests for r in results), sum(r.wall_s for r in results)
    speed = f"{requests / max(wall_s, 1e-9):,.0f} a second"
    console.print(f"[dim]{requests:,} requests simulated in {wall_s:.2f} s of one core: {speed}", soft_wrap=True)


def _comparison(results: Sequence[Result], changed: set[int], price: float | None, hidden: Collection[int] = ()) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    shown = [index for index in range(len(COLUMNS) - 1) if index not in hidden]
    table.add_column("", overflow="fold")
    for index in shown:
        head = COLUMNS[index + 1] + (" " * 9 if index in changed else "")
        table.add_column(head, justify="right", no_wrap=True)
    if price is not None:
        table.add_column("a month", justify="right", no_wrap=True)
    for index, result in enumerate(results):
        month = [] if price is None else [f"{cost(result, price)[0]:,.0f}"]
        cells = row(result, results[0] if index else None, changed)
        table.add_row(_escape(result.scenario), *(cells[i] for i in shown), *month)
    return table


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _print_notes(console: Any, said: list[str]) -> None:
    from rich.text import Text

    for note in said:
        console.print(Text.assemble(("warning: ", "yellow"), note), soft_wrap=True)


def write_plot(path: Path, made: Sequence[Built], results: Sequence[Result], said: Sequence[list[str]]) -> None:
    """The report of all runs."""
    from arlo.report.result import save
    from arlo.simulator.report.page import document

    documents = []
    for each, result, notes in zip(made, results, said, strict=True):
        lines = (text.partition(" ") for text in describe(each).splitlines())
        facts = [(name, text.strip()) for name, _, text in lines]
        documents.append(document(result, facts=facts, warnings=notes))
    save(path, documents, "Simulation")
