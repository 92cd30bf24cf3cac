"""The output of `arlo simulate`: one run, several compared, JSON, and caveats for the reader of the figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from arlo.cli.simulate.load import least_workers, offered_workers
from arlo.cli.text import print_json
from arlo.report.numbers import ms, share
from arlo.report.terminal import columns, console, say, warn

if TYPE_CHECKING:
    from rich.table import Table
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
    out = console()
    out.print(f"[bold]{_escape(result.scenario)}", soft_wrap=True)
    say(out, [*describe(built).splitlines(), ""])
    outcomes = "  ".join(f"{name} {count:,}" for name, count in result.outcomes.items() if count)
    out.print(
        f"[bold]{share(result.slo_attainment)}[/] of {result.requests:,} requests on time  "
        f"goodput {result.goodput_rps:,.1f}/s  {outcomes}",
        soft_wrap=True,
    )
    if result.bulk:
        after = "" if result.bulk_mean_ms is None else f", after {ms(result.bulk_mean_ms)} ms on average"
        bulk = (
            f"{result.bulk:,} requests of the class bulk: {result.bulk_answered:,} answered, {result.bulk_rps:,.1f}/s"
        )
        say(out, [f"beside them {bulk}{after}"])
    if result.models:
        out.print(_models(result))
    _print_figures(out, result)
    values = (result.mean_ms, result.p50_ms, result.p90_ms, result.p98_ms, result.p99_ms, result.max_ms)
    rows = [
        ("arrival to answer", *map(ms, values)),
        ("  waiting", ms(result.mean_wait_ms)),
        ("  executing", ms(result.mean_execution_ms)),
    ]
    out.print(columns(("latency, ms", "mean", "p50", "p90", "p98", "p99", "max"), rows))
    out.print()
    for line in histogram(result):
        out.print(line, soft_wrap=True)
    out.print()
    if not result.figures.more:
        out.print(_runtimes(result))
    retried = f"  retried {result.retried:,}" if result.retried else ""
    lines = [
        "",
        f"GPUs {_workers(result)}, {result.gpu_hours:.4g} GPU-hours  executing {result.utilization:.1%} of the time  "
        f"padding {result.padding:.1%} of the computed tokens  demoted {result.demoted:.1%}",
        f"allocations {result.allocations}  replacements {result.replacements}{retried}",
    ]
    if price is not None:
        month, million = cost(result, price)
        lines.append(
            f"cost at {price:g} a GPU-hour: {month:,.0f} a month (730 h), {million:,.4g} for a million requests on time"
        )
    say(out, lines)
    warn(out, said)
    speed = f"{result.requests / max(result.wall_s, 1e-9):,.0f} a second"
    out.print(f"[dim]{result.requests:,} requests simulated in {result.wall_s:.2f} s: {speed}", soft_wrap=True)


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


def _models(result: Result) -> Table:
    """The figures of each of several models."""
    head = ("model", "requests", "SLO ms", "on time", "goodput/s", "mean ms", "p98 ms", "p99 ms", "unanswered")
    rows = [
        (
            model["name"],
            f"{model['requests']:,}",
            f"{model['slo_ms']:g}",
            share(model["slo_attainment"]),
            f"{model['goodput_rps']:,.1f}",
            *(ms(model[key]) for key in ("mean_ms", "p98_ms", "p99_ms")),
            f"{model['unanswered']:,}",
        )
        for model in result.models
    ]
    return columns(head, rows)


def _runtimes(result: Result) -> Table:
    """Runtimes: their instances over time, and the rows they served."""
    served = sum(runtime["served"] for runtime in result.runtimes)
    end_s = max(float(result.timeline["time_s"][-1]), 1e-9) if len(result.timeline["time_s"]) else 1.0
    rows = [
        (
            str(runtime["name"]),
            span(result.timeline.get(f"instances.{runtime['name']}", np.zeros(0))),
            f"{runtime['served']:,}",
            f"{runtime['served'] / served:.1%}" if served else "-",
            f"{runtime['demoted']:,}",
            f"{runtime['busy_s'] / end_s:.2f}",
        )
        for runtime in result.runtimes
    ]
    return columns(("runtime", "instances", "served", "share", "demoted to it", "busy GPUs"), rows)


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


class Figure(NamedTuple):
    """A column of the comparison. `points`: its change is given in percentage points, with so many digits."""

    title: str
    value: Callable[[Result], float | None]
    form: Callable[[float], str]
    points: int | None = None


def known_share(value: float | None) -> str:
    """The share, `-` if it is not known."""
    return "-" if value is None or math.isnan(value) else share(value)


def _of_answers(name: str) -> Callable[[Result], float | None]:
    return lambda result: getattr(result.figures, name) if result.figures.more else None


FIGURES = (
    Figure("mean ms", lambda result: result.mean_ms, ms),
    Figure("p98 ms", lambda result: result.p98_ms, ms),
    Figure("on time", lambda result: result.slo_attainment, share, 2),
    Figure("goodput/s", lambda result: result.goodput_rps, lambda value: f"{value:,.1f}"),
    Figure("GPU-hours", lambda result: result.gpu_hours, lambda value: f"{value:.4g}"),
    Figure("padding", lambda result: result.padding, lambda value: f"{value:.1%}", 1),
    Figure("accuracy", _of_answers("accuracy"), known_share, 2),
    Figure("degraded", _of_answers("degraded"), known_share, 2),
    Figure("utility", _of_answers("utility"), lambda value: f"{value:,.6g}"),
    Figure("joules", lambda result: result.joules if result.figures.more else None, lambda value: f"{value:.3g}"),
)
COMPARED = ("mean ms", "p98 ms")  # always with their change


def change(figure: Figure, value: float, other: float) -> str:
    """`-12.3%` against the other value, `x13` or `/250` if that is clearer, `+1.20 pt` of a share."""
    if not (math.isfinite(value) and math.isfinite(other)):
        return ""
    if figure.points is not None:
        return f"{100 * (value - other):+.{figure.points}f} pt"
    if not other:
        return ""
    if value > 10 * other:
        return f"x{value / other:,.0f}"
    return f"/{other / value:,.0f}" if 0 < value < other / 100 else f"{value / other - 1:+.1%}"


def print_comparison(
    made: Sequence[Built], results: Sequence[Result], said: Sequence[list[str]], price: float | None
) -> None:
    """A table with one line for each run."""
    from rich.measure import Measurement

    out, wide = console(), console(1000)
    out.print(f"[bold]{len(results)} runs, compared with the first", soft_wrap=True)
    for name, texts in (
        ("latencies", {each.latencies.partition(": ")[0] for each in made}),
        ("requests ", {each.scenario.workload.describe() for each in made}),
    ):
        say(out, [f"{name} {text}" for text in sorted(texts) if len(texts) <= 3])
    out.print()
    known = figures_of(results)  # columns that hardly differ have no change, which would waste room
    differ = {f.title for f in known if len({_cell(f, r) for r in results}) > 1} | {*COMPARED}
    table = table_of(results, known, differ, price)
    if out.is_terminal and Measurement.get(wide, wide.options, table).maximum > out.width:
        table = table_of(results, [f for f in known if f.title != "goodput/s"], {*COMPARED}, price)
    (out if out.is_terminal else wide).print(table)
    warn(out, [f"{r.scenario}: {note}" for r, each in zip(results, said, strict=True) for note in each])
    requests, wall_s = sum(r.requests for r in results), sum(r.wall_s for r in results)
    speed = f"{requests / max(wall_s, 1e-9):,.0f} a second"
    out.print(f"[dim]{requests:,} requests simulated in {wall_s:.2f} s of one core: {speed}", soft_wrap=True)


def figures_of(results: Sequence[Result]) -> list[Figure]:
    """The columns with a value for some result. Of rows that go on there is no padding."""
    known = [f for f in FIGURES if any(v is not None and not math.isnan(v) for v in map(f.value, results))]
    return [f for f in known if f.title != "padding" or not any(result.figures.more for result in results)]


def _cell(figure: Figure, result: Result) -> str:
    value = figure.value(result)
    return figure.form(math.nan if value is None else value)


def table_of(
    results: Sequence[Result],
    shown: Sequence[Figure],
    changed: Collection[str],
    price: float | None,
    *,
    names: Sequence[str] = (),
    of: str = "",
) -> Table:
    """A row for each result, called by its scenario unless there are `names`; columns of `changed` have their change
    against the first."""
    from rich.text import Text

    def cell(figure: Figure, result: Result) -> Text:
        text = Text(_cell(figure, result))
        if figure.title in changed:
            values = [math.nan if value is None else value for value in map(figure.value, (result, results[0]))]
            text.append(f" {change(figure, *values) if result is not results[0] else '':>8}", "dim")
        return text

    head = [of, *(figure.title + (" " * 9 if figure.title in changed else "") for figure in shown)]
    rows: list[tuple[str | Text, ...]] = []
    for name, result in zip(names or [each.scenario for each in results], results, strict=True):
        month = [] if price is None else [f"{cost(result, price)[0]:,.0f}"]
        rows.append((name, *(cell(figure, result) for figure in shown), *month))
    return columns(head + ([] if price is None else ["a month"]), rows)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


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
