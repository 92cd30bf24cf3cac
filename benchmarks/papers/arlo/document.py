"""docs/evaluation.md and docs/evaluation-sensitivity.md, made from the results alone; a test keeps them equal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.papers.arlo import WHERE
from benchmarks.papers.arlo.experiment import VERDICTS, verdict

DOCS, RESULTS = harness.ROOT / "docs", harness.RESULTS / "figures"
_HEAD = """# The paper's evaluation, beside ours

Written by `make figures` from `benchmarks/results/figures/*.json`; do not edit. `make figures SHORT=1` runs
everything in seconds, on traces too short to compare with the paper.

Paper: "Arlo: Serving Transformer-based Language Models with Dynamic Input Lengths", ICPP'24. Ours: the same scheme in
the simulator, with the scheduler that serves. *Over* says what the span covers: other seeds, or the other assumptions
of the sensitivity table, each changed alone. *Shipped*: the same with the policy and objective that Arlo ships, instead
of the paper's. No parameter was tuned to meet a number.

- **reached**: at least as good as the paper's, or as near as the row says
- **beyond**: on the right side, but less than a third of what the paper leaves of the latency is left: what is compared
  with has collapsed or packs in a way that the paper's did not; the note says why
- **reached as shipped**: not with the paper's scheduler and Eq. 1, but with what Arlo ships
- **short**: not reached; the note says why

What changes under other assumptions: [sensitivity](evaluation-sensitivity.md).
"""
_SENSITIVITY = """# Sensitivity of the evaluation

Written by `make figures`; do not edit. What becomes of the rows of [the evaluation](evaluation.md) under other
assumptions where the paper states none, each changed alone.
"""


def number(value: float | None, unit: str = "") -> str:
    """A figure as it stands in tables: three digits or so."""
    if value is None:
        return "-"
    size = abs(value)
    if unit == "% less":
        text = f"{value:.1f}"
    elif unit == "s" and 0 < size < 0.01:
        text, unit = f"{1000 * value:.3g}", "ms"
    elif size >= 1e6:
        text = f"{value / 1e6:.2f} M"
    elif size >= 1e4:
        text = f"{value:,.0f}"
    elif size >= 100:
        text = f"{value:.1f}"
    elif size >= 1:
        text = f"{value:.2f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".strip() if unit != "% less" else (f"-{text} %" if value >= 0 else f"+{-value:.1f} %")


def of_paper(target: dict[str, Any]) -> str:
    """The paper's value; a reduction of 0 stands for a claim without a number."""
    if target["unit"] == "% less" and target["paper"] == 0:
        return "wins"
    return number(target["paper"], target["unit"])


def span(row: dict[str, Any], unit: str) -> str:
    """Least and most, in the order in which they are read."""
    if row["low"] is None or row["high"] is None:
        return ""
    return f"{number(row['low'], unit)} … {number(row['high'], unit)}"


def rows_as_text(result: dict[str, Any]) -> Iterator[str]:
    """For the terminal: a line for each row, the note below it."""
    for row in result["rows"]:
        target = result["targets"][row["target"]]
        unit = target["unit"]
        ours = number(row["ours"], unit)
        around = f" [{span(row, unit)} over {row['over']}]" if span(row, unit) else ""
        better = f", shipped {number(row['better'], unit)}" if row["better"] is not None else ""
        yield (
            f"{target['quantity']}: paper {of_paper(target)}, ours {ours}{around}{better} "
            f"({VERDICTS[verdict(target, row)]})"
        )
        if row["note"]:
            yield f"    {row['note']}"


def kept() -> list[dict[str, Any]]:
    """The results that are kept, in the order of the document."""
    return [json.loads(path.read_text()) for name in WHERE if (path := RESULTS / f"{name}.json").exists()]


def pages(results: Sequence[dict[str, Any]]) -> dict[Path, str]:
    """The documents, whole."""
    parts = [_HEAD, "## Ours and the paper's\n", *_summary(results)]
    shown: set[tuple[str, str]] = set()  # parameters that several experiments share are written once
    for result in results:
        parts += _section(result, shown)
    sensitivity = [_SENSITIVITY]
    for result in results:
        if result["sensitivity"]:
            sensitivity.append(f"## {result['title']}\n")
            sensitivity += [line for table in result["sensitivity"] for line in _table(table)]
    return {
        DOCS / "evaluation.md": "\n".join(parts).rstrip() + "\n",
        DOCS / "evaluation-sensitivity.md": "\n".join(sensitivity).rstrip() + "\n",
    }


def _summary(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| | where | paper | ours | over | shipped | |"
    yield "|---|---|---|---|---|---|---|"
    for result in results:
        for row in result["rows"]:
            target = result["targets"][row["target"]]
            unit = target["unit"]
            around = f"{span(row, unit)} ({row['over']})" if span(row, unit) else ""
            cells = (
                target["quantity"],
                target["where"],
                of_paper(target),
                number(row["ours"], unit),
                around,
                number(row["better"], unit) if row["better"] is not None else "",
                VERDICTS[verdict(target, row)],
            )
            yield _line(cells)
    yield ""


def _section(result: dict[str, Any], shown: set[tuple[str, str]]) -> Iterator[str]:
    yield f"## {result['title']}\n"
    yield f"{result['text']}\n"
    for paragraph in result["findings"]:
        yield f"{paragraph}\n"
    noted = [row for row in result["rows"] if row["note"]]
    for row in noted:
        target = result["targets"][row["target"]]
        yield f"- *{target['quantity']}* ({VERDICTS[verdict(target, row)].split(',')[0]}). {row['note']}"
    if noted:
        yield ""
    for table in result["tables"]:
        yield from _table(table)
    fresh = [one for one in result["parameters"] if (one["name"], one["value"]) not in shown]
    shown.update((one["name"], one["value"]) for one in fresh)
    if fresh:
        yield "| parameter | value | from |"
        yield "|---|---|---|"
        for one in fresh:
            yield _line((one["name"], one["value"], one["source"]))
        yield ""
    if len(fresh) < len(result["parameters"]):
        yield "Other parameters as above.\n"
    yield f"`{result['command']}`, {result['date']}, {result['machine']['cpu']}, {result['wall_s']:g} s.\n"


def _table(table: dict[str, Any]) -> Iterator[str]:
    yield f"**{table['title']}**" + (f": {table['caption']}" if table["caption"] else "") + "\n"
    yield _line(table["columns"])
    yield _line(["---"] * len(table["columns"]))
    for cells in table["rows"]:
        yield _line(cells)
    yield ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
