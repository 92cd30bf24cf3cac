"""Result files: a command's results as plain data. `arlo report FILE.json` draws them, several over each other.

    found = report("replay", "Replay: minilm", label="minilm", cards=[("42", "requests")],
                   charts=[chart("Latency", "ms", "share (%)", [line("latency", x, y)], x_log=True)])
    save(Path("page.html"), [found])   # or .json

All charts and tables of all kinds of results are these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from arlo.errors import ConfigError
from arlo.report import page
from arlo.report.numbers import digits

SCHEMA = "arlo.report/1"
_MOST_APART = 6  # of several results, those whose stacked charts and tables are shown
Document = dict[str, Any]
Draw = Literal["lines", "markers", "lines+markers", "steps", "bars", "area"]


def report(
    kind: str,
    title: str,
    *,
    label: str,
    what: Iterable[str] = (),
    cards: Iterable[tuple[str, str]] = (),
    notes: Iterable[str] = (),
    warnings: Iterable[str] = (),
    charts: Iterable[Document] = (),
    tables: Iterable[Document] = (),
) -> Document:
    """A result of one kind (simulation, replay, ...). `label` tells it from others; `cards`: figure, what it is."""
    parts = {
        "what": what,
        "cards": map(list, cards),
        "notes": notes,
        "warnings": warnings,
        "charts": charts,
        "tables": tables,
    }
    named = {name: [each for each in part if each] for name, part in parts.items()}
    return {"kind": kind, "title": title, "label": label, **named}


def chart(title: str, x: str, y: str, lines: Iterable[Document | None], **options: Any) -> Document:
    """A chart with the names of its axes. Options: x_log, y_log, y_range, stacked (bars), marks ({"x" or "y": value,
    "text"}), empty (what to say without lines), note (below it)."""
    return {"title": title, "x": x, "y": y, "lines": [each for each in lines if each is not None], **options}


def line(name: str, x: Iterable[Any], y: Iterable[float], draw: Draw = "lines", **options: Any) -> Document:
    """One line, set of marks or bars, with a gap for each value that is not finite. Options: color, dash, text (of each
    point), error ([above, below] of each point)."""
    across = [each if isinstance(each, str) else digits(float(each), 6) for each in x]
    return {"name": name, "x": across, "y": [digits(float(each)) for each in y], "draw": draw, **options}


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> Document:
    """A table of text; without a head, names and their values. Options: marked (numbers of rows)."""
    return {"title": title, "head": list(head), "rows": [list(row) for row in rows], **options}


def save(path: Path, results: Sequence[Document], title: str = "") -> None:
    """Write a page (.html) or a result file (.json). ConfigError for another name, or where that is not possible."""
    if path.suffix.lower() == ".json":
        page.write(path, json.dumps({"schema": SCHEMA, "results": results}, allow_nan=False) + "\n")
    elif path.suffix.lower() in (".html", ".htm"):
        from arlo.report.draw import draw

        page.write(path, draw(merged(results, title)))
    else:
        raise ConfigError(f"{path}: a report is a page, .html, or a file for `arlo report`, .json")


def load(path: Path) -> list[Document]:
    """The results of a file; ConfigError where there are none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path} is no result file ({SCHEMA}): write one with `arlo simulate --plot FILE.json`, `arlo replay --out "
            "DIR` (DIR/report.json) or another command's --plot, --report or --out"
        )
    results = found.get("results")
    if not isinstance(results, list) or not results or not all(isinstance(each, dict) for each in results):
        raise ConfigError(f"{path} has no results: write it again")
    return results


def merged(results: Sequence[Document], title: str = "") -> Document:
    """Several results as one: a row of figures and a line of each chart for each of them. One alone as it is."""
    if len(results) == 1:
        return results[0]
    names = [each["label"] for each in results]
    names = [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, start=1)]
    pairs = list(zip(names, results, strict=True))
    head = list(dict.fromkeys(label for each in results for _, label in each["cards"]))
    figures = [[name, *({b: a for a, b in each["cards"]}.get(label, "-") for label in head)] for name, each in pairs]
    charts: dict[str, Document] = {}
    for name, each in pairs:
        for one in each["charts"]:
            if any(part["draw"] == "area" for part in one["lines"]):
                # Compared with others, a stack of one layer has nothing to show.
                if len(one["lines"]) > 1 and names.index(name) < _MOST_APART:
                    charts[f"{one['title']}: {name}"] = one | {"title": f"{one['title']}: {name}"}
                continue
            whole = charts.setdefault(one["title"], one | {"lines": [], "marks": []})
            alone = len(one["lines"]) == 1
            parts = [part | {"name": name if alone else f"{name}: {part['name']}"} for part in one["lines"]]
            _lay(whole, [part | {"color": None} if alone else part for part in parts])
            whole["marks"] += [mark for mark in one.get("marks", ()) if mark not in whole["marks"]]
    return report(
        results[0]["kind"],
        title or f"{len(results)} results",
        label=", ".join(names),
        what=[f"{name}: {text}" for name, each in pairs for text in each["what"]],
        warnings=[f"{name}: {text}" for name, each in pairs for text in (*each["warnings"], *each["notes"])],
        charts=charts.values(),
        tables=[
            table("", ("", *head), figures),
            *(
                one | {"title": f"{one['title']}: {name}"}
                for name, each in pairs[:_MOST_APART]
                for one in each["tables"]
            ),
        ],
    )


def _lay(whole: Document, parts: list[Document]) -> None:
    """Add lines to a chart. A line that lies over another would only hide it."""
    for part in parts:
        same = [each for each in whole["lines"] if (each["x"], each["y"]) == (part["x"], part["y"])]
        if not same:
            whole["lines"].append(part)
        elif not same[0]["name"].endswith(" and others alike"):
            same[0]["name"] += " and others alike"
