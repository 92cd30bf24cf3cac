"""The choice of lengths for people and for programs: rows of a table, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arlo.compile.steps.lengths import LengthChoice
from arlo.planning.lengths.choice import PAPER_STEP, Evaluation

if TYPE_CHECKING:
    from rich.table import Table

_MOST_SHOWN = 10  # lengths in one cell
BEST, BESIDE = "", "dim"  # styles of rows: the best sets, and sets to compare with


def rows(found: LengthChoice) -> list[tuple[str, list[str]]]:
    """Style and cells of the best sets by number of runtimes, then of the sets to compare with: runtimes, lengths,
    expected time, saved against padding to the longest, saved over one runtime less, padding."""
    choice = found.choice

    def row(style: str, runtimes: str, of: Evaluation, further: str = "") -> tuple[str, list[str]]:
        saving, padding = f"{100 * choice.saving(of):.1f}%", f"{100 * of.padded_share:.1f}%"
        return style, [runtimes, short(of.lengths), _cost(found, of.expected_us), saving, further, padding]

    shown = []
    for index, each in enumerate(choice.rows):
        chosen = index + 1 == choice.runtimes
        further = f"{100 * choice.marginal(index):.1f}%" if index else ""
        shown.append(row("bold" if chosen else BEST, f"{index + 1}{' <' * chosen}", each, further))
    if choice.given is not None:
        shown.append(row(BESIDE, f"{len(choice.given.lengths)}, as named", choice.given))
    shown.append(row(BESIDE, f"{len(choice.paper.lengths)}, every {PAPER_STEP}", choice.paper))
    if choice.uniform.lengths not in (choice.paper.lengths, choice.chosen.lengths):
        shown.append(row(BESIDE, f"{len(choice.uniform.lengths)}, equal", choice.uniform))
    saving = f"{100 * (1 - choice.bound_us / choice.rows[0].expected_us):.1f}%"
    bound = ["any number", "a runtime for every length", _cost(found, choice.bound_us), saving, "", ""]
    return [*shown, (BESIDE, bound)]


def table(found: LengthChoice) -> Table:
    """The rows, for a terminal."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("runtimes", no_wrap=True)
    drawn.add_column("maximum lengths")
    expected = "of padded" if found.curve.relative else "expected,\nms"
    for title in (expected, "saves", "last one\nsaves", "padding"):
        drawn.add_column(title, justify="right", no_wrap=True)
    for style, cells in rows(found):
        drawn.add_row(*cells, style=style)
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
    """JSON form, for `--json`. Times are microseconds; None where only ratios are known."""
    choice, requests = found.choice, found.traffic

    def time_us(value: float) -> float | None:
        return None if found.curve.relative else round(value, 3)

    def evaluation(row: Evaluation) -> dict[str, Any]:
        return {
            "lengths": list(row.lengths),
            "expected_us": time_us(row.expected_us),
            "saving": round(choice.saving(row), 6),
            "padded_share": round(row.padded_share, 6),
            "shares": [round(share, 6) for share in row.shares],
        }

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
            evaluation(row) | {"further_saving": round(choice.marginal(index), 6)}
            for index, row in enumerate(choice.rows)
        ],
        "every_64": evaluation(choice.paper),
        "equal_steps": evaluation(choice.uniform),
        "named": None if choice.given is None else evaluation(choice.given),
        "bound": {
            "expected_us": time_us(choice.bound_us),
            "saving": round(1 - choice.bound_us / choice.rows[0].expected_us, 6),
        },
        "notes": list(found.notes),
    }


def short(lengths: tuple[int, ...]) -> str:
    """The lengths as `--lengths` takes them, `64,128,512`; only the ends of long lists."""
    if len(lengths) > _MOST_SHOWN:
        return f"{lengths[0]},{lengths[1]}, ... ,{lengths[-1]}"
    return ",".join(map(str, lengths))


def _cost(found: LengthChoice, expected_us: float) -> str:
    """Milliseconds; where only ratios are known, percent of the time on the longest runtime."""
    if found.curve.relative:
        return f"{100 * expected_us / found.choice.rows[0].expected_us:.1f}%"
    return f"{expected_us / 1000:#.4g}"
