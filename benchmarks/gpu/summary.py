"""summary.md: the ratios that the paper states, beside those of this device, and what was not measured."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu.results import (
    PAPER_STEP,
    Group,
    Results,
    at_batch,
    expected,
    padded_us,
    ratios,
    span,
    tweets,
)

PAPER_DYNAMIC = "1.22x to 3.56x"
PAPER_SAVED = "70.3 %"


def summary(results: Results, *, problems: Sequence[str] = ()) -> str:
    """The document."""
    header = results.header
    machine = header["machine"]
    parts = [f"# {machine['name']}: does a runtime per length pay?", _head(results)]
    parts += [_static_dynamic(results), _by_length(results), _padding(results), _batches(results)]
    parts += [_profiles(results), _users(results), _end_to_end(header.get("end_to_end")), _open(results, problems)]
    parts.append(_machine(results))
    return "\n\n".join(part for part in parts if part) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _head(results: Results) -> str:
    header = results.header
    machine, options = header["machine"], header["options"]
    at = datetime.datetime.fromtimestamp(header["at"], datetime.UTC)
    lines = [f"    {header['command']}", ""]
    lines.append(
        f"{at:%Y-%m-%d}, {machine['kind'].upper()}, {len(results.records)} cells in {header['seconds']:.0f} s."
    )
    if note := header.get("note"):
        lines.append(note)
    loads = [r["state"]["other_load"] for r in results.records if "other_load" in r.get("state", {})]
    if loads:
        busy = sum(load > 0.1 for load in loads) / len(loads)
        lines.append(
            f"Other programs took {100 * statistics.median(loads):.0f} % of all cores in the median cell (at most "
            f"{100 * max(loads):.0f} %), more than 10 % in {100 * busy:.0f} % of the cells."
        )
    lines.append(
        "Times are medians; contenders took turns. Whole call: from token ids in host memory (text, for the libraries) "
        "to embeddings in host memory. Device: between two device events, or by a synchronised clock."
    )
    if machine["kind"] == "cpu":
        lines.append(f"CPU back-ends ran with {options['threads']} thread(s); on a CPU only the whole call is told.")
    return "\n".join(lines)


def _static_dynamic(results: Results) -> str:
    rows = []
    for group in results.groups():
        for compute, what in ((True, "device"), (False, "whole call")):
            if compute and not results.on_device(group):
                continue
            found = _inflation(results, group, compute=compute)
            if found:
                middle = f"{statistics.median(found.values()):.2f}x"
                rows.append([group.model, group.precision, group.backend, what, middle, span(list(found.values()))])
    if not rows:
        return ""
    title = f"## Dynamic over static, batch 1\n\nThe paper: {PAPER_DYNAMIC} (section 2.2, TensorRT).\n\n"
    return title + table(["model", "precision", "back-end", "time", "median", "over the lengths"], rows)


def _inflation(results: Results, group: Group, *, compute: bool) -> dict[int, float]:
    static, dynamic = (results.of(group, shape, compute=compute) for shape in ("static", "dynamic"))
    return ratios(dynamic, static, 1)


def _by_length(results: Results) -> str:
    """A table for each model and precision: the ratio of each back-end at each length."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for group in results.groups():
        values = _inflation(results, group, compute=True)
        if values:
            found.setdefault((group.model, group.precision), {})[group.backend] = values
    parts = []
    for (model, precision), backends in found.items():
        lengths = sorted({length for values in backends.values() for length in values})
        rows = [
            [str(length), *(f"{values[length]:.2f}" if length in values else "" for values in backends.values())]
            for length in lengths
        ]
        parts.append(f"### {model} {precision}, dynamic over static\n\n{table(['tokens', *backends], rows)}")
    return "\n\n".join(parts)


def _padding(results: Results) -> str:
    rows = []
    for group in results.groups():
        static = at_batch(results.of(group, "static"), 1)
        dynamic = at_batch(results.of(group, "dynamic"), 1)
        padded = at_batch(results.of(group, "padded"), 1)
        for stretched in (True, False):
            lengths, share = tweets(max(static, default=0) or 1, stretched=stretched)
            for step in (PAPER_STEP, 16):
                mean = expected(static, dynamic, padded_us(padded, lengths, share), lengths, share, step=step)
                if mean is None or (step == 16 and len(static) <= 512 // PAPER_STEP + 1):
                    continue
                over = "" if mean.saved_over_dynamic is None else f"{100 * mean.saved_over_dynamic:.1f} %"
                rows.append(
                    [
                        *(group.model, group.precision, group.backend),
                        *("stretched" if stretched else "as they are", f"{mean.levels}"),
                        *(f"{mean.static_us / 1000:.3f}", f"{mean.padded_us / 1000:.3f}"),
                        *(f"{100 * mean.saved:.1f} %", over),
                    ]
                )
    if not rows:
        return ""
    columns = ["model", "precision", "back-end", "tweets", "runtimes", "static, ms", "padded, ms"]
    text = (
        "## Polymorphing against padding to the longest, tweet lengths\n\n"
        "Mean of the whole call over the lengths of tweets, batch 1, no waiting: each on the shortest static runtime "
        "that takes it, against all padded. Stretched: so that the longest tweet has as many tokens as the longest "
        f"runtime, as the paper has it. The paper's mean latencies are {PAPER_SAVED} lower, with waiting "
        "(section 5.1).\n\n"
    )
    return text + table([*columns, "saved", "saved against dynamic"], rows)


def _batches(results: Results) -> str:
    rows = []
    for group in results.groups():
        static, dynamic = (results.of(group, shape, compute=True) for shape in ("static", "dynamic"))
        for batch in sorted({rows for _, rows in static} - {1}):
            found = ratios(dynamic, static, batch)
            if found:
                rates = [batch * 1e6 / us for us in at_batch(static, batch).values()]
                rows.append(
                    [
                        *(group.model, group.precision, group.backend, str(batch), span(list(found.values()))),
                        f"{min(rates):,.0f} to {max(rates):,.0f}",
                    ]
                )
    if not rows:
        return ""
    columns = ["model", "precision", "back-end", "batch", "dynamic over static", "rows per second, static"]
    return f"## Larger batches\n\n{table(columns, rows)}"


def _profiles(results: Results) -> str:
    rows = []
    for group in results.groups():
        for compute in (True, False):
            one = results.of(group, "profiles", compute=compute)
            found = ratios(one, results.of(group, "static", compute=compute), 1)
            if found:
                what = "device" if compute and results.on_device(group) else "whole call"
                rows.append([group.model, group.precision, group.backend, what, span(list(found.values()))])
    if not rows:
        return ""
    title = "## One engine with several profiles over an engine per length, batch 1\n\n"
    return title + table(["model", "precision", "back-end", "time", "over the lengths"], rows)


def _users(results: Results) -> str:
    """The libraries as people run them, over the static runtimes of each back-end."""
    rivals = [name for name, about in results.contenders.items() if about["backend"] in _LIBRARIES]
    rows = []
    for group in results.groups():
        static = results.of(group, "static")
        for rival in rivals:
            times = results.times(group.model, group.precision, rival)
            found = ratios(times, static, 1)
            if found:
                rows.append([group.model, group.precision, rival, group.backend, span(list(found.values()))])
    if not rows:
        return ""
    text = (
        "## Against the libraries as people run them, batch 1\n\n"
        "Whole call of the library, with its tokenising, over that of the static runtimes, without.\n\n"
    )
    return text + table(["model", "precision", "library", "back-end", "library over static"], rows)


_LIBRARIES = ("transformers", "sentence-transformers")


def _end_to_end(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    title = "## End to end: Triton, the gateway and a replayed trace"
    if "skipped" in found:
        return f"{title}\n\nNot run: {found['skipped']}."
    rows = [
        [
            *(run["load"], run["scheme"], f"{run['rate_rps']:.1f}", str(run["requests"])),
            *(f"{run[name]:.1f}" for name in ("mean_ms", "p50_ms", "p98_ms")),
            *(f"{100 * run['attainment']:.1f} %", run["placed"], "; ".join(run["problems"])),
        ]
        for run in found["runs"]
    ]
    columns = ["load", "scheme", "requests/s", "requests", "mean, ms", "p50, ms", "p98, ms", "on time", "instances"]
    text = [title, found["about"], table([*columns, "problems"], rows)]
    if changes := _changes(found["runs"]):
        text.append("\n".join(changes))
    return "\n\n".join(text)


def _changes(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for load in dict.fromkeys(run["load"] for run in runs):
        mean = {run["scheme"]: run["mean_ms"] for run in runs if run["load"] == load}
        if "Arlo" in mean:
            parts = [_beside(mean["Arlo"], ms, name) for name, ms in mean.items() if name != "Arlo"]
            lines.append(f"- {load}: the mean of Arlo is {', '.join(parts)}")
    return lines


def _beside(ours: float, theirs: float, name: str) -> str:
    change = 100 * (1 - ours / theirs)
    return f"{abs(change):.1f} % {'below' if change >= 0 else 'above'} {name}"


def _open(results: Results, problems: Sequence[str]) -> str:
    header = results.header
    parts = [f"- {name}: {why}" for name, why in header["unavailable"].items()]
    if header["dropped"]:
        parts.append("- for lack of time (least telling first):")
        parts += [f"  - {line}" for line in header["dropped"]]
    for record in results.errors:
        where = f"{record['model']} {record['precision']} {record['contender']}, {record['length']} x {record['batch']}"
        parts.append(f"- {where}: {record.get('error') or 'wrong answer, cosine ' + str(record['cosine'])}")
    if len(parts) > 60:
        parts = [*parts[:60], f"- and {len(parts) - 60} more, in latency.json"]
    parts += [f"- {problem}" for problem in problems]
    return "" if not parts else "## Not measured\n\n" + "\n".join(parts)


def _machine(results: Results) -> str:
    machine = results.header["machine"]
    rows = [[name, value] for name, value in {**machine["facts"], **machine["versions"]}.items()]
    states = [record["state"] for record in results.records if "clocks.sm" in record.get("state", {})]
    for name in ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active"):
        seen = sorted({state[name] for state in states if name in state})
        if seen:
            rows.append([f"{name}, after a cell", seen[0] if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"])
    return f"## Machine\n\n{table(['what', 'value'], rows)}"
