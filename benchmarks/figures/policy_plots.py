"""Plots of the policy study, from its kept figures: python -m benchmarks.figures.policy_plots writes one HTML file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.report import figure as frame
from arlo.report import page
from benchmarks.figures.plots import COLORS

SHOWN = ("ig", "eft", "late")
_LOADED = ("plain, stable", "plain, bursty", "Eq. 1 allocation, stable", "Eq. 1 allocation, bursty", "drift, bursty")


def plots(found: dict[str, Any]) -> dict[str, Any]:
    """Plotly figures by name."""
    made = {
        "ratios over load": over_load(found["study"]),
        "settings and policies": heat_map(found["summary"]),
    }
    if found["bar"]:
        made["the bar"] = bar(found["bar"])
    return made


def over_load(study: Sequence[dict[str, Any]]) -> Any:
    """Mean and p98 over those of rs against the load; a column for each setting, solid 10 and dotted 90 instances."""
    from plotly.subplots import make_subplots

    names = [name for name in _LOADED if any(row["setting"] == name for row in study)]
    figure = make_subplots(
        rows=2, cols=len(names), shared_xaxes=True, shared_yaxes=True, subplot_titles=names, vertical_spacing=0.06
    )
    shown: set[str] = set()
    for column, name in enumerate(names, 1):
        here = [row for row in study if row["setting"] == name]
        for workers in sorted({row["workers"] for row in here}):
            rows = sorted((row for row in here if row["workers"] == workers), key=lambda row: row["load"])
            for policy in SHOWN:
                label = f"{policy}, {workers} instances"
                for line, figure_name in enumerate(("mean", "p98"), 1):
                    figure.add_scatter(
                        x=[100 * row["load"] for row in rows],
                        y=[row[policy][figure_name] for row in rows],
                        name=label,
                        legendgroup=label,
                        showlegend=label not in shown,
                        mode="lines+markers",
                        marker={"size": 4},
                        line={"color": COLORS[policy], "width": 2, "dash": "solid" if workers == 10 else "dot"},
                        row=line,
                        col=column,
                    )
                    shown.add(label)
        figure.update_xaxes(title_text="load (%)", row=2, col=column)
        for line in (1, 2):
            figure.add_hline(y=1.0, line={"color": frame.GREY, "width": 1}, row=line, col=column)
    figure.update_yaxes(type="log", tickvals=[0.05, 0.1, 0.2, 0.5, 1, 1.5], range=[-1.5, 0.35])
    figure.update_yaxes(title_text="mean / mean of rs", row=1, col=1)
    figure.update_yaxes(title_text="p98 / p98 of rs", row=2, col=1)
    return _styled(figure, "Latency against rs over load", width=1250, height=640)


def heat_map(summary: Sequence[dict[str, Any]]) -> Any:
    """Settings against policies: geometric means over loads and sizes of the ratios to rs."""
    import plotly.graph_objects as go

    columns = [f"{policy}_{figure}" for figure in ("mean", "p98") for policy in SHOWN]
    values = [[row[column] for column in columns] for row in summary]
    worst = [[f"worst {row[f'{column}_worst']:.3f}" for column in columns] for row in summary]
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=[column.replace("_", " ") for column in columns],
            y=[row["setting"] for row in summary],
            text=[[f"{value:.2f}" for value in row] for row in values],
            customdata=worst,
            hovertemplate="%{y}, %{x}: %{z:.3f}, %{customdata}<extra></extra>",
            texttemplate="%{text}",
            colorscale=[[0, "#1b7f5c"], [0.55, "#bfe3d0"], [2 / 3, "#ffffff"], [1, frame.RED]],
            zmin=0.0,
            zmax=1.5,
            colorbar={"title": {"text": "of rs"}},
        )
    )
    figure.update_yaxes(autorange="reversed", tickfont={"size": 10}, automargin=True)
    figure.update_xaxes(side="top")
    return _styled(figure, "Geometric mean of the ratio to rs, over loads and sizes", width=900, height=1300)


def bar(rows: Sequence[dict[str, Any]]) -> Any:
    """At the highest load at which rs keeps 99 %: ratios to rs, and the mean of the relaxed problem."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, subplot_titles=["mean / mean of rs", "p98 / p98 of rs"])
    names = [f"{row['setting']}, {row['workers']} instances, load {row['load']:.2f}" for row in rows]
    for column, (name, most) in enumerate((("mean", 0.75), ("p98", 0.6)), 1):
        for policy in SHOWN:
            values = [row["against_rs"][policy][name] for row in rows]
            figure.add_scatter(
                x=[value[0] for value in values],
                y=names,
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [value[2] - value[0] for value in values],
                    "arrayminus": [value[0] - value[1] for value in values],
                },
                mode="markers",
                name=policy,
                legendgroup=policy,
                showlegend=column == 1,
                marker={"color": COLORS[policy], "size": 8},
                row=1,
                col=column,
            )
        figure.add_vline(x=most, line={"color": frame.GREY, "dash": "dash", "width": 1}, row=1, col=column)
    figure.add_scatter(
        x=[row["relaxed_mean"] for row in rows],
        y=names,
        mode="markers",
        name="relaxed problem",
        marker={"color": frame.INK, "symbol": "line-ns-open", "size": 14},
        row=1,
        col=1,
    )
    figure.update_yaxes(autorange="reversed", automargin=True)
    return _styled(figure, "At the highest load at which rs keeps 99 %", width=1150, height=620)


def _styled(figure: Any, title: str, *, width: int, height: int) -> Any:
    legend = {"orientation": "h", "y": -0.1, "yanchor": "top"}
    return frame.framed(figure, title, width=width, height=height, legend=legend)


def main() -> int:
    """Write the plots of the kept figures."""
    from benchmarks.figures.policy_study import figures

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reports/policy_study.html"), help="the file")
    args = parser.parse_args()
    page.write(args.out, page.render("Dispatch policies", [page.plots([figure]) for figure in figures().values()]))
    print(f"-> {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
