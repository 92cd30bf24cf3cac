"""The parts of `arlo top`'s screen as rich renderables of a known number of lines. Pure: a View in, text out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from arlo.cascade.decide import DEADLINE, REASONS
from arlo.cli.top.charts import Glyphs, bar, level_style, share_style, sparkline
from arlo.cli.top.flows import FlowRows, FlowStageRow
from arlo.cli.top.view import CascadeRows, ModelRow, RuntimeRow, StageRow, View, WorkerRow
from arlo.control.http.status import ControlStatus

STATES = {"serving": "green", "replacing": "yellow", "starting": "yellow", "degraded": "red"}
GOOD_STEPS = ("steady", "active")
WIDE_TABLE, NARROW_TABLE = 100, 78
TREND_FROM_S = 5.0  # a shorter trend says nothing
Field = tuple[str, Any, str]  # name, value, style of the value


def seconds(value: float) -> str:
    """0.4 s, 45 s, 2m 05s, 1h 02m, 3d 04h."""
    if value < 60:
        return f"{value:.1f} s" if value < 9.95 else f"{int(value)} s"
    whole = int(value)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02}h"


def number(value: float | None, digits: int = 1) -> str:
    """A dash for None; fewer digits for large values."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    """A dash for None. What is below 100 % is not shown as 100 %."""
    if value is None:
        return "-"
    text = f"{100 * value:.{digits}f}"
    if value < 1 and float(text) >= 100:
        text = f">{100 - 10**-digits:.{digits}f}"
    return f"{text} %"


def fields(items: Iterable[Field], width: int, gap: str = "  ") -> Text:
    """`name value  name value ...` on one line; what does not fit is left out, from the end."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for name, value, style in items:
        item = Text.assemble((f"{name} " if name else "", "bright_black"), (str(value), style))
        if line.cell_len and line.cell_len + len(gap) + item.cell_len > width:
            break
        line.append(gap if line.cell_len else "")
        line.append_text(item)
    return line


def header(shown: View, width: int, glyphs: Glyphs) -> list[Text]:
    """Who, how much, how fast, what is wrong."""
    lines = [fields(_identity(shown), width), fields(_traffic(shown), width)]
    if shown.gateway is not None and shown.gateway["total"]["count"]:
        lines.append(_latency(shown, width, glyphs))
        if len(shown.p98_ms) > 1 and shown.p98_ms[0][0] >= TREND_FROM_S:
            lines.append(_trend(shown, width, glyphs))
    control = shown.control
    if control is not None and control.scaling.policy != "none":
        lines.append(_scaling(control))
    for error in (shown.control_error, shown.gateway_error):
        if error:
            lines.append(Text(error, style="red", no_wrap=True, overflow="ellipsis"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _identity(shown: View) -> list[Field]:
    control, gateway = shown.control, shown.gateway
    items: list[Field] = [("", shown.model or "-", "bold")]
    if control is not None:
        items.append(("", control.state, f"bold {STATES.get(control.state, '')}"))
        if not control.gateway_up:
            items.append(("gateway", "down", "bold red"))
    if shown.slo_ms is not None:
        items.append(("slo", f"{shown.slo_ms} ms", ""))
    if gateway is not None:
        items.append(("policy", gateway["policy"], ""))
    uptime = control if control is not None else None
    if uptime is not None:
        items.append(("up", seconds((uptime.at_ms - uptime.started_at_ms) / 1000), ""))
    elif gateway is not None:
        items.append(("gateway up", seconds((gateway["at_ms"] - gateway["started_at_ms"]) / 1000), ""))
    version = gateway["deployment_version"] if gateway is not None else control.deployment_version if control else 0
    items.append(("deployment", version, ""))
    if control is not None:
        counters = control.counters
        for name, key in (("failed moves", "replacement_failures"), ("fallbacks", "plan_fallbacks")):
            if counters.get(key):
                items.append((name, counters[key], "red"))
    return items


def _traffic(shown: View) -> list[Field]:
    gateway = shown.gateway
    if gateway is None:
        return [("rows/s", "-", ""), ("attainment", "-", "")]
    attainment = shown.attainment
    waiting = gateway["queued"]
    items: list[Field] = [
        ("rows/s", number(shown.rows_per_s), "bold"),
        ("on time/s", number(shown.goodput_rps), ""),
        ("attainment", percent(attainment, 2), f"bold {_attained(attainment)}"),
        ("padding", percent(shown.padding), ""),
        ("waiting", waiting, "yellow" if waiting else ""),
        ("in flight", gateway["in_flight"], ""),
    ]
    for name in ("parked", "ejections", "retries"):
        if gateway[name]:
            items.append((name, gateway[name], "red" if name == "parked" else ""))
    return items


def _attained(share: float | None) -> str:
    return "" if share is None else "green" if share >= 0.99 else "yellow" if share >= 0.95 else "red"


def _latency(shown: View, width: int, glyphs: Glyphs) -> Text:
    assert shown.gateway is not None
    total, slo_ms = shown.gateway["total"], shown.slo_ms
    items: list[Field] = []
    for name in ("mean", "p50", "p98", "p99", "max"):
        value = total[f"{name}_us"] / 1000
        style = share_style(value / slo_ms) if slo_ms else ""
        items.append((name, number(value), f"bold {style}" if name == "p98" else style))
    line = Text(f"ms, last {total['window_s']} s  ", style="bright_black", no_wrap=True)
    line.append_text(Text.assemble(("", "none"), fields(items, width)))
    if slo_ms:
        share = total["p98_us"] / 1000 / slo_ms
        text = f"  p98 {percent(share)} of SLO "
        room = width - line.cell_len - len(text)
        if room >= 0:
            line.append(text, "bright_black")
        if room >= 6:
            line.append_text(bar(share, min(room, 20), glyphs, share_style(share)))
    return line


def _trend(shown: View, width: int, glyphs: Glyphs) -> Text:
    values = [value for _, value in shown.p98_ms]
    age_s = max((age for age, _ in shown.p98_ms), default=0.0)
    label = f"p98, last {seconds(age_s)}  "
    line = Text(label, style="bright_black", no_wrap=True)
    room = width - len(label) - 16
    line.append_text(sparkline(values, room, glyphs, limit=float(shown.slo_ms) if shown.slo_ms else None))
    line.append(f"  up to {number(max(values[-room:]))} ms", "bright_black")
    return line


def _scaling(control: ControlStatus) -> Text:
    scaling = control.scaling
    line = Text.assemble(
        ("scaling ", "bright_black"),
        f"{scaling.policy}: {scaling.workers} workers ({scaling.minimum} to {scaling.maximum})",
        no_wrap=True,
    )
    if scaling.last_action:
        ago = seconds(max(0.0, (control.at_ms - scaling.last_at_ms) / 1000))
        line.append(f"; {scaling.last_action} {ago} ago: {scaling.last_reason}")
    return line


def _table(columns: Iterable[tuple[str, str]]) -> Table:
    """Columns are (name, "l", "r" or "*"); "*" takes the room that is left."""
    columns = list(columns)
    fill = any(kind == "*" for _, kind in columns)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=fill, header_style="bright_black")
    for name, kind in columns:
        table.add_column(
            name,
            justify="right" if kind == "r" else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if kind == "*" else None,
        )
    return table


def models(shown: View, width: int, lines: int, glyphs: Glyphs) -> Table:
    """One line per model below the head; with too few lines the last are left out."""
    wide = width >= WIDE_TABLE
    columns = [("model", "l"), ("slo", "r"), ("workers", "r"), ("rows/s", "r"), ("on time/s", "r")]
    columns += [("attainment", "r"), ("mean", "r"), ("p98", "r"), ("waiting", "r"), ("in flight", "r")]
    columns += [("p98 of SLO", "*")] if wide else []
    missing = set() if wide else {"on time/s", "mean"}
    missing |= {"slo"} if width < NARROW_TABLE else set()
    table = _table(column for column in columns if column[0] not in missing)
    for index, row in enumerate(shown.models[: max(0, lines - 1)]):
        cells = dict(zip((name for name, _ in columns), _model(row, index, glyphs), strict=False))
        table.add_row(*(cell for name, cell in cells.items() if name not in missing))
    return table


def _model(row: ModelRow, index: int, glyphs: Glyphs) -> list[Text | str]:
    agreed = row.desired is None or row.desired == row.observed
    workers = "-" if row.observed is None else str(row.observed) if agreed else f"{row.observed} of {row.desired}"
    share = row.p98_ms / row.slo_ms if row.p98_ms is not None and row.slo_ms else None
    style = "" if share is None else share_style(share)
    return [
        Text(row.name, level_style(index)),
        "-" if row.slo_ms is None else f"{row.slo_ms} ms",
        Text(workers, "" if agreed else "yellow"),
        number(row.rows_per_s),
        number(row.goodput_rps),
        Text(percent(row.attainment, 2), _attained(row.attainment)),
        number(row.mean_ms),
        Text(number(row.p98_ms), style),
        Text("-" if row.queued is None else str(row.queued), "yellow" if row.queued else ""),
        "-" if row.in_flight is None else str(row.in_flight),
        Text("-") if share is None else bar(share, 10, glyphs, style) + f" {percent(share):>5}",
    ]


def stages(shown: CascadeRows, width: int, lines: int) -> Table:
    """One line per stage of a cascade below the head; with too few lines the last are left out."""
    columns = [("stage", "l"), ("answers/s", "r"), ("reach", "r"), ("planned", "r"), ("went on", "r")]
    columns.append(("ended with its answer", "*"))
    missing = {"went on"} if width < NARROW_TABLE else set()
    if all(row.planned is None for row in shown.stages):
        missing.add("planned")
    table = _table(column for column in columns if column[0] not in missing)
    for row in shown.stages[: max(0, lines - 1)]:
        ended = Text(no_wrap=True, overflow="ellipsis")
        for reason, share in row.ended.items():
            style = "red" if REASONS.index(reason) >= DEADLINE else ""
            ended.append(", " if ended.cell_len else "").append(f"{reason} {percent(share)}", style)
        went_on = percent(row.went_on) if row.went_on else "-"
        cells = dict(zip((name for name, _ in columns), _stage(row, went_on, ended), strict=True))
        table.add_row(*(cell for name, cell in cells.items() if name not in missing))
    return table


def _stage(row: StageRow, went_on: str, ended: Text) -> list[Text | str]:
    reach = [percent(row.reach), percent(row.planned)]
    return [row.name, number(row.answers_per_s), *reach, went_on, ended if ended.cell_len else "-"]


def cascade_title(shown: CascadeRows) -> str:
    """Of the section of a cascade: the point in force, and what it makes of the rows."""
    parts = [f"stages of {shown.name}: point {shown.point}", f"price {shown.price}"]
    if shown.degraded:
        parts.append(f"degraded {percent(shown.degraded, 1)}")
    if shown.agreement is not None or shown.agreement_planned is not None:
        planned = "" if shown.agreement_planned is None else f" ({percent(shown.agreement_planned, 1)})"
        parts.append(f"agrees {percent(shown.agreement, 1)}{planned}")
    return ", ".join(parts)


def flow_title(shown: FlowRows) -> str:
    """Of the section of a pipeline: the plan in force."""
    if not shown.planner:
        return f"stages of {shown.name}: no plan yet"
    return (
        f"stages of {shown.name}: {shown.step} scaling, served {percent(shown.served)}, "
        f"accuracy {percent(shown.accuracy, 1)}, price {shown.price:.3g}"
    )


def flow(shown: FlowRows, width: int, lines: int) -> Table:
    """One line per stage of a pipeline below the head, each below the one that it follows; with too few lines the last
    are left out."""
    columns = [("stage", "l"), ("rows/s", "r"), ("of one", "r"), ("ended", "r"), ("dropped", "r"), ("rerouted", "r")]
    columns += [("accuracy", "r"), ("answered by", "*")]
    missing = set() if width >= WIDE_TABLE else {"rerouted"}
    missing |= {"dropped", "of one"} if width < NARROW_TABLE else set()
    table = _table(column for column in columns if column[0] not in missing)
    for row in shown.stages[: max(0, lines - 1)]:
        cells = dict(zip((name for name, _ in columns), _flow_stage(row), strict=True))
        table.add_row(*(cell for name, cell in cells.items() if name not in missing))
    return table


def _flow_stage(row: FlowStageRow) -> list[Text | str]:
    by = [f"{each.name} {percent(each.share)}" for each in row.variants if each.share or each.share is None]
    return [
        f"{'  ' * row.depth}{row.name}",
        number(row.rows_per_s),
        number(row.of_one, 2),
        percent(row.ended),
        Text(percent(row.dropped), "red" if row.dropped else ""),
        percent(row.rerouted),
        percent(row.accuracy, 1),
        ", ".join(by),
    ]


def runtimes(shown: View, width: int, lines: int, glyphs: Glyphs) -> Table:
    """One line per runtime below the head; with too few lines the longest are left out. Columns that only the control
    plane could fill are left out without it. Of several models one line per length of each; their instances are of all
    lengths, and stand with the models."""
    wide = width >= WIDE_TABLE
    columns = [
        ("model", "l"),
        ("max_length", "r"),
        ("want", "r"),
        ("have", "r"),
        ("demand", "r"),
        ("peak", "r"),
        ("load", "r"),
    ]
    columns += [("arrivals", "l" if wide else "r"), ("demoted", "r"), ("ms", "r"), ("capacity" if wide else "M", "r")]
    columns += [("runtime", "*")] if wide else []
    missing = {"want", "demand", "peak", "load"} if shown.control is None else set()
    missing |= {"peak", "demoted"} if width < NARROW_TABLE else set()
    missing |= {"want", "have", "load", "runtime"} if shown.models else {"model"}
    table = _table(column for column in columns if column[0] not in missing)
    for index, row in enumerate(shown.runtimes[: max(0, lines - 1)]):
        cells = dict(zip((name for name, _ in columns), _runtime(row, index, wide, glyphs), strict=False))
        table.add_row(*(cell for name, cell in cells.items() if name not in missing))
    return table


def _runtime(row: RuntimeRow, index: int, wide: bool, glyphs: Glyphs) -> list[Text | str]:
    arrivals = Text(percent(row.share))
    if wide and row.share is not None:
        arrivals = bar(row.share, 10, glyphs, level_style(index)) + f" {percent(row.share):>5}"
    agreed = row.desired is None or row.observed is None or row.desired == row.observed
    return [
        row.model,
        Text(str(row.max_length), level_style(index)),
        "-" if row.desired is None else str(row.desired),
        Text("-" if row.observed is None else str(row.observed), "" if agreed else "yellow"),
        number(row.demand),
        number(row.peak),
        Text(percent(row.load), "" if row.load is None else share_style(row.load, good=0.7)),
        arrivals,
        percent(row.demoted),
        number(row.latency_ms, 2),
        str(row.capacity) if row.capacity is not None else "-",
        row.name,
    ]


def worker_lines(shown: View, width: int) -> int:
    """Lines that workers() takes to show everything."""
    return 1 + len(shown.workers) + len(_errors(shown, width))


def workers(shown: View, width: int, lines: int, glyphs: Glyphs) -> Group:
    """One line per worker below the head. With too few lines: those in trouble or on the move first, then a count.

    An error has its own line below the table where there is no room beside it; at least one of them is shown.
    """
    wide = width >= WIDE_TABLE
    columns = [("worker", "l"), ("serves", "l"), ("step", "l"), ("in flight", "r"), ("queued", "r")]
    columns += [("busy", "l" if wide else "r"), ("rows/s", "r"), ("restarts", "r")]
    columns += [("error", "*")] if wide else []
    missing = {"queued", "restarts"} if width < NARROW_TABLE else set()
    table = _table(column for column in columns if column[0] not in missing)
    rows, hidden = shown.workers, 0
    errors = _errors(shown, width)
    errors = errors[: max(1, lines - 1 - len(rows))]
    lines -= len(errors)
    if len(rows) > lines - 1:
        room = max(0, lines - 2)
        first = sorted(rows, key=lambda row: not (row.trouble or row.step not in GOOD_STEPS))[:room]
        rows, hidden = [row for row in rows if row in first], len(rows) - room
    labels = _labels(shown)
    for row in rows:
        cells = dict(zip((name for name, _ in columns), _worker(row, labels, wide, glyphs), strict=False))
        table.add_row(*(cell for name, cell in cells.items() if name not in missing))
    if hidden:
        table.add_row("...", f"{hidden} more", style="bright_black")
    return Group(table, *errors)


def _errors(shown: View, width: int) -> list[Text]:
    if width >= WIDE_TABLE:
        return []
    errors = [Text(f"{row.id}: {row.error}", "red", no_wrap=True) for row in shown.workers if row.error]
    for error in errors:
        error.truncate(width, overflow="ellipsis")
    return errors


def _labels(shown: View) -> dict[str, tuple[str, str]]:
    """Runtime -> what it is called in the narrow tables (its max_length, when that is unique, or the model that it is
    of), and its colour."""
    if shown.models:
        held = shown.control.runtimes if shown.control is not None else []
        colours = {row.name: level_style(index) for index, row in enumerate(shown.models)}
        return {runtime.name: (runtime.model or "all", colours.get(runtime.model, "")) for runtime in held}
    lengths = [row.max_length for row in shown.runtimes]
    return {
        row.name: (str(row.max_length) if lengths.count(row.max_length) == 1 else row.name, level_style(index))
        for index, row in enumerate(shown.runtimes)
    }


def _worker(row: WorkerRow, labels: dict[str, tuple[str, str]], wide: bool, glyphs: Glyphs) -> list[Text | str]:
    serves = Text()
    for name, before in ((row.runtime, ""), (row.target, f"{glyphs.arrow} ")):
        if name:
            label, style = labels.get(name, (name, ""))
            serves.append(" " if serves else "").append(before, "yellow").append(label, style)
    step = row.step or "-"
    if row.step_s is not None and row.step not in GOOD_STEPS:
        step += f" {seconds(row.step_s)}"
    busy = Text(percent(row.busy), "" if row.busy is None else share_style(row.busy, fair=0.95))
    if wide and row.busy is not None:
        busy = bar(row.busy, 10, glyphs, share_style(row.busy, fair=0.95)) + f" {percent(row.busy):>5}"
    return [
        row.id,
        serves,
        Text(step, "red" if row.trouble else "green" if row.step in GOOD_STEPS else "yellow"),
        *("-" if value is None else str(value) for value in (row.in_flight, row.queued)),
        busy,
        number(row.rows_per_s),
        Text("-" if row.restarts is None else str(row.restarts), "yellow" if row.restarts else ""),
        Text(row.error, "red"),
    ]


def plans(control: ControlStatus, width: int, lines: int) -> list[Text]:
    """The last plans, newest first, below a head. A note stands behind its plan, or below it where there is no room."""
    head = ["when", "why", "instances", "moved", "gain"] + (["mean", "solver"] if width >= 70 else [])
    rows = []
    for plan in reversed(control.plans):
        ago = seconds(max(0.0, (control.at_ms - plan.at_ms) / 1000))
        counts = " ".join(
            f"{runtime.model} {plan.instances.get(runtime.name, 0)}".strip()
            for runtime in control.runtimes
            if runtime.name in plan.instances or not control.models
        )
        solver = [f"{number(plan.predicted_mean_ms, 2)} ms", f"{plan.solver} {number(plan.solve_ms)} ms"]
        if not plan.solver:  # nothing was solved: the configuration's, or a restored one
            solver = ["-", "-"]
        moved = str(plan.changed) if plan.moved else "-"
        rows.append([f"{ago} ago", plan.reason, counts, moved, percent(plan.gain, 1), *solver][: len(head)])
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]

    def line(cells: list[str], style: str) -> Text:
        right = ("moved", "gain", "mean")
        padded = (
            cell.rjust(size) if name in right else cell.ljust(size)
            for name, cell, size in zip(head, cells, widths, strict=True)
        )
        return Text("  ".join(padded).rstrip(), style, no_wrap=True, overflow="ellipsis")

    shown = [line(head, "bright_black")]
    for plan, cells in zip(reversed(control.plans), rows, strict=True):
        shown.append(line(cells, "" if plan.moved else "bright_black"))
        note = Text(plan.note, "yellow", no_wrap=True, overflow="ellipsis")
        if plan.note and shown[-1].cell_len + 2 + note.cell_len <= width:
            shown[-1].append("  ").append_text(note)
        elif plan.note:
            shown.append(Text("  ").append_text(note))
            shown[-1].truncate(width, overflow="ellipsis")
    return shown[:lines]
