"""The HTML report: one file that loads nothing from anywhere."""

from __future__ import annotations

import html
import importlib
from pathlib import Path

from arlo.errors import EnvironmentProblem
from arlo.replay.outcomes import OUTCOMES
from arlo.replay.plots import figures, outcome_color
from arlo.replay.result import ReplayResult
from arlo.replay.table import rows_of

# The browser itself holds the page to what it promises: no request leaves it.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; background: #f4f6f9; margin: 0; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 32px 0 10px; }
p.what { margin: 0 0 20px; color: #5a6575; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; }
.card, .box { background: #fff; border: 1px solid #e1e6ed; border-radius: 8px; }
.card { padding: 12px 16px; }
.card b { display: block; font-size: 22px; font-weight: 600; }
.card span { color: #5a6575; font-size: 13px; }
.box { padding: 6px; overflow-x: auto; min-width: 0; }
.plots .box { overflow: hidden; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(540px, 100%), 1fr));
  gap: 14px; margin-top: 14px; }
table { border-collapse: collapse; width: 100%; }
td { padding: 5px 12px; border-bottom: 1px solid #eef1f5; vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td:first-child { font-weight: 600; white-space: nowrap; width: 1%; }
code { font: 13px ui-monospace, monospace; word-break: break-all; }
.warn { background: #fff6e5; border: 1px solid #f0d49a; border-radius: 8px; padding: 8px 14px; margin: 12px 0; }
"""


def write_report(result: ReplayResult, path: Path) -> None:
    """Write the report as one HTML file of about 5 MB (the plotting library is in it).

    EnvironmentProblem when plotly is not installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(result), encoding="utf-8")


def render(result: ReplayResult) -> str:
    """The whole page."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise EnvironmentProblem("the HTML report needs plotly: pip install 'arlo-serve[bench]'") from None
    config = {"displayModeBar": False, "responsive": True}
    plots = [figure.to_html(full_html=False, include_plotlyjs=False, config=config) for figure in figures(result)]
    title = f"Replay: {result.header['model']} at {result.header['target']}"
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
            f"<script>{offline.get_plotlyjs()}</script></head>\n<body><main>",
            _head(result, title),
            _cards(result),
            _warnings(result),
            '<div class="plots">',
            *[f'<div class="box">{plot}</div>' for plot in plots],
            "</div>",
            "<h2>Summary</h2>",
            _table(rows_of(result.summary)),
            _errors(result),
            "<h2>How it was measured</h2>",
            _table(_how(result)),
            # The first plot measures its box before the second one takes half of the row.
            '<script>addEventListener("load", () => dispatchEvent(new Event("resize")))</script>',
            "</main></body></html>\n",
        ]
    )


def _head(result: ReplayResult, title: str) -> str:
    h, trace = result.header, result.trace
    machine = h["machine"]
    facts = [
        h["started_at"],
        f"{len(trace)} requests over {trace.duration_s:.1f} s",
        h["input"],
        f"{h['sender']} sender",
        f"{machine['cpu']}, {machine['cores']} cores",
    ]
    what = " &middot; ".join(html.escape(fact) for fact in facts)
    return f'<h1>{html.escape(title)}</h1><p class="what">{what}</p>'


def _cards(result: ReplayResult) -> str:
    s = result.summary
    cards = [(f"{s.requests}", "requests"), (f"{s.slo_attainment:.2%}", f"on time, SLO {s.slo_ms:g} ms")]
    cards.append((f"{s.goodput_rps:.1f} /s", "goodput"))
    if s.latency is not None:
        cards += [
            (f"{s.latency.mean_ms:.1f} ms", "mean latency"),
            (f"{s.latency.p50_ms:.1f} ms", "p50 latency"),
            (f"{s.latency.p98_ms:.1f} ms", "p98 latency"),
        ]
    if s.padding is not None:
        cards.append(
            (
                f"{s.padding.share:.1%}",
                f"padding; {s.padding.share_if_longest:.1%} if all padded to {s.padding.longest}",
            )
        )
    shown = "".join(f'<div class="card"><b>{value}</b><span>{label}</span></div>' for value, label in cards)
    outcomes = " &nbsp; ".join(
        f'<b style="color:{outcome_color(name)}">{s.outcomes[name]}</b> {name}' for name in OUTCOMES
    )
    return f'<div class="cards">{shown}</div><p>{outcomes}</p>'


def _warnings(result: ReplayResult) -> str:
    s = result.summary
    lines = []
    if s.interrupted:
        lines.append(f"Interrupted: {s.planned - s.requests} requests of the trace were not sent.")
    if s.undrained:
        lines.append("Some requests were cancelled because their answers did not come in time.")
    if s.sends.late:
        lines.append(
            f"{s.sends.late} requests left more than {s.sends.threshold_ms:g} ms after their instant (at most "
            f"{s.sends.max_delay_ms:.1f} ms): the sender was short of CPU. Their wait is part of the latency shown."
        )
    if s.padding is not None and s.padding.told_by == "request":
        lines.append("The target does not say how many tokens it computed; the width of the requests sent is taken.")
    return "".join(f'<div class="warn">{html.escape(line)}</div>' for line in lines)


def _errors(result: ReplayResult) -> str:
    errors = result.errors()
    if not errors:
        return ""
    return "<h2>Errors</h2>" + _table([(f"{e['count']} x {e['code']}", e["message"]) for e in errors[:20]])


def _how(result: ReplayResult) -> list[tuple[str, str]]:
    h = result.header
    machine = h["machine"]
    return [
        ("command", h["command"]),
        ("target", f"{h['target']}, model {h['model']}"),
        ("date", h["started_at"]),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in h["versions"].items())),
        ("options", ", ".join(f"{name} {value}" for name, value in h["options"].items())),
        ("latency", "from the instant the trace gives, not from the instant of sending; over all answered requests"),
    ]


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td>{html.escape(a)}</td><td><code>{html.escape(b)}</code></td></tr>" for a, b in rows)
    return f'<div class="box"><table>{cells}</table></div>'
