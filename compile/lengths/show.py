"""The choice of lengths for people and for programs: rows of a table, JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from arlo.compile.steps.lengths import LengthChoice
from arlo.planning.lengths.choice import PAPER_STEP, Evaluation

if TYPE_CHECKING:
    from rich.table import Table

_MOST_SHOWN = 10  # lengths in one cell


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One set of lengths, as text."""

    runtimes: str
    lengths: str
    expected: str
    saving: str  # against padding to the longest
    further: str  # saved by this runtime over one less; empty where that says nothing
    padding: str
    chosen: bool = False
    beside: bool = False  # not one of the best sets: something to compare with


def cost_title(found: LengthChoice) -> str:
    """The column title of `Row.expected`."""
    return "of padded" if found.curve.relative else "expected, ms"


def rows(found: LengthChoice) -> list[Row]:
    """The best sets by number of runtimes, then the sets to compare with."""
    choice, count = found.choice, found.choice.runtimes
    shown = [
        _row(found, str(index + 1), row, further=choice.marginal(index) if index else None, chosen=index + 1 == count)
        for index, row in enumerate(choice.rows)
    ]
    if choice.given is not None:
        shown.append(_row(found, f"{len(choice.given.lengths)}, as named", choice.given, beside=True))
    shown.append(_row(found, f"{len(choice.paper.lengths)}, every {PAPER_STEP}", choice.paper, beside=True))
    if choice.uniform.lengths not in (choice.paper.lengths, choice.chosen.lengths):
        shown.append(_row(found, f"{len(choice.uniform.lengths)}, equal", choice.uniform, beside=True))
    bound = Row(
        runtimes="any number",
        lengths="a runtime for every length",
        expected=cost(found, choice.bound_us),
        saving=f"{100 * (1 - choice.bound_us / choice.rows[0].expected_us):.1f}%",
        further="",
        padding="",
        beside=True,
    )
    return [*shown, bound]


def table(found: LengthChoice) -> Table:
    """The rows, for a terminal."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("runtimes", no_wrap=True)
    drawn.add_column("maximum lengths")
    for title in (cost_title(found), "saves", "last one saves", "padding"):
        drawn.add_column(title.replace(", ", ",\n").replace("one ", "one\n"), justify="right", no_wrap=True)
    for row in rows(found):
        style = "bold" if row.chosen else "dim" if row.beside else ""
        mark = " <" if row.chosen else ""
        drawn.add_row(row.runtimes + mark, row.lengths, row.expected, row.saving, row.further, row.padding, style=style)
    return drawn


def sentences(found: LengthChoice) -> list[str]:
    """Sentences for people: the basis of the table, and the choice."""
    requests = found.traffic
    return [
        f"requests: {requests.text}; median {requests.percentile(50)}, p98 {requests.percentile(98)}, served up to "
        f"{requests.longest} tokens",
        f"latency: {found.curve.about}",
        f"chosen: {found.choice.why}",
    ]


def as_dict(found: LengthChoice) -> dict[str, Any]:
    """JSON form, for `--json` and the manifest. Times are microseconds; None where only ratios are known."""
    choice, requests = found.choice, found.traffic
    return {
        "lengths": list(found.lengths),
        "why": choice.why if choice.given is None else "as named",
        "chosen": list(choice.chosen.lengths),
        "max_runtimes": choice.max_runtimes,
        "least_saving": choice.least_saving,
        "traffic": {
            "spec": requests.spec,
            "text": requests.text,
            "longest": requests.longest,
            "p50": requests.percentile(50),
            "p98": requests.percentile(98),
            "cut_share": requests.cut_share,
        },
        "latency": found.curve.as_dict(),
        "best": [
            _evaluation(found, row) | {"further_saving": round(choice.marginal(index), 6)}
            for index, row in enumerate(choice.rows)
        ],
        "every_64": _evaluation(found, choice.paper),
        "equal_steps": _evaluation(found, choice.uniform),
        "named": None if choice.given is None else _evaluation(found, choice.given),
        "bound": {
            "expected_us": None if found.curve.relative else round(choice.bound_us, 3),
            "saving": round(1 - choice.bound_us / choice.rows[0].expected_us, 6),
        },
        "notes": list(found.notes),
    }


def cost(found: LengthChoice, expected_us: float) -> str:
    """Milliseconds; where only ratios are known, percent of the time on the longest runtime."""
    if found.curve.relative:
        return f"{100 * expected_us / found.choice.rows[0].expected_us:.1f}%"
    return f"{expected_us / 1000:#.4g}"


def short(lengths: tuple[int, ...]) -> str:
    """The lengths as `--lengths` takes them, `64,128,512`; only the ends of long lists."""
    if len(lengths) > _MOST_SHOWN:
        return f"{lengths[0]},{lengths[1]}, ... ,{lengths[-1]}"
    return ",".join(map(str, lengths))


def _row(
    found: LengthChoice,
    runtimes: str,
    row: Evaluation,
    *,
    further: float | None = None,
    chosen: bool = False,
    beside: bool = False,
) -> Row:
    return Row(
        runtimes=runtimes,
        lengths=short(row.lengths),
        expected=cost(found, row.expected_us),
        saving=f"{100 * found.choice.saving(row):.1f}%",
        further="" if further is None else f"{100 * further:.1f}%",
        padding=f"{100 * row.padded_share:.1f}%",
        chosen=chosen,
        beside=beside,
    )


def _evaluation(found: LengthChoice, row: Evaluation) -> dict[str, Any]:
    return {
        "lengths": list(row.lengths),
        "expected_us": None if found.curve.relative else round(row.expected_us, 3),
        "saving": round(found.choice.saving(row), 6),
        "padded_share": round(row.padded_share, 6),
        "shares": [round(share, 6) for share in row.shares],
    }
