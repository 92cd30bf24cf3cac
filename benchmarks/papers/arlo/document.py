"""build/figures/arlo.md: every table of the evaluation, made from the results alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.papers.arlo.experiment import verdict

PAGE, RESULTS = harness.ROOT / "build" / "figures" / "arlo.md", harness.RESULTS / "figures"
ORDER = ("fig06", "fig07", "fig08", "fig10", "fig11", "tab3", "tab4", "tab2", "fig09")


def number(value: float | None, unit: str = "") -> str:
    """A figure as shown in tables, with about three digits."""
    if value is None:
        return "-"
    size = abs(value)
    if unit == "% less":
        return f"-{value:.1f} %" if value >= 0 else f"+{-value:.1f} %"
    for least, form in ((1e4, ",.0f"), (100, ".1f"), (1, ".2f")):
        if size >= least:
            return f"{value:{form}} {unit}".strip()
    return f"{value:.3g} {unit}".strip()


def kept() -> list[dict[str, Any]]:
    """The stored results, in the order of the document."""
    return [json.loads(path.read_text()) for name in ORDER if (path := RESULTS / f"{name}.json").exists()]


def rows_as_text(result: Mapping[str, Any]) -> Iterator[str]:
    """The result's rows as lines for the terminal."""
    for row in result["rows"]:
        paper, ours, shipped = (number(row[key], row["unit"]) for key in ("paper", "ours", "shipped"))
        yield f"{row['quantity']}: paper {paper}, ours {ours}, shipped {shipped} ({verdict(row)}) {row['note']}"


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    parts = ["# The evaluation of Arlo's paper, and ours\n"]
    for result in results:
        parts += [f"## {result['title']}\n", f"{result['text']}\n", "| | where | paper | ours | shipped | | |"]
        parts.append("|---|---|---|---|---|---|---|")
        for row in result["rows"]:
            unit = row["unit"]
            wins = "wins" if unit == "% less" and row["paper"] == 0 else number(row["paper"], unit)
            shipped = "" if row["shipped"] is None else number(row["shipped"], unit)
            ours = number(row["ours"], unit)
            parts.append(_line([row["quantity"], row["where"], wins, ours, shipped, verdict(row), row["note"]]))
        for table in result["tables"]:
            parts += [f"\n**{table['title']}**\n", _line(table["columns"]), _line(["---"] * len(table["columns"]))]
            parts += map(_line, table["rows"])
        parts.append(f"\n`{result['command']}`, {result['date']}, {result['machine']['cpu']}.\n")
    return "\n".join(parts).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
