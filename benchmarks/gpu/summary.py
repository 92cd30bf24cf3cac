"""summary.md of a run: every table of the kit. A cell that was not measured is `not run`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.gpu import BUCKETS, LENGTHS, MIXES, ROWS, Cell
from benchmarks.gpu.report import COMMAND, NOT_RUN, PACKED_KINDS, Results

BASE = "bert-base"
CORNERS = (16, 64, 128, 256, 512)
PLANS = ("fifo32", "fifo32-graphs", "lengths8", "lengths16", "packed4096", "packed8192", "packed16384", "both")
SERVERS = ("static", "packed", "both", "packed_fifo", "triton")


def summary(results: Results) -> str:
    """The whole file."""
    facts = results.facts
    parts = [
        f"# {facts.get('name', 'CPU')}: what the GPU kit measured",
        f"`{facts.get('command', COMMAND)}` on {facts.get('date', '?')}; torch {facts.get('torch', '?')}, Python "
        f"{facts.get('python', '?')}. Weights are drawn; speed does not depend on them. Times are medians, on the "
        "device unless they say otherwise.",
        _facts(results),
        f"## Goals\n\n{_goals(results)}",
        f"## Static against dynamic shapes, BERT-base fp16\n\n{_static(results)}",
        f"## Other shapes\n\n{_others(results)}",
        f"## Packed rows\n\n{_packed(results)}",
        f"## A long queue: rows a second by how batches are made\n\n{_mixes(results)}",
        f"## Served over gRPC, open loop\n\n{_serve(results)}",
        f"## ONNX Runtime on CUDA\n\n{_ort(results)}",
    ]
    return "\n\n".join(parts) + "\n"


def number(value: float | None, form: str = ".3g") -> str:
    """The value for a table; `not run` without one."""
    if value is None:
        return NOT_RUN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:{form}}"


def over(above: float | None, below: float | None, *, scale: float = 1.0, form: str = ".2f", unit: str = "x") -> str:
    """The ratio; `not run` where one of the two is missing."""
    return NOT_RUN if above is None or not below else f"{scale * above / below:{form}}{unit}"


def share(above: float | None, below: float | None) -> str:
    """The ratio in percent."""
    return over(above, below, scale=100, form=".0f", unit=" %")


def table(header: str, lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; `header` names the columns, separated by |."""
    names = [name.strip() for name in header.split("|")]
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *lines])


def _facts(results: Results) -> str:
    facts = results.facts
    lines = [
        ["matrix product, TFLOP/s", number(facts.get("matmul_tflops"))],
        *([f"of these {shape}", number(rate)] for shape, rate in facts.get("matmul_by_shape", {}).items()),
        ["copy in device memory, TB/s", number(facts.get("copy_tb_s"))],
        ["power when idle, W", number(facts.get("idle_watts"))],
    ]
    for check in facts.get("checks", []):
        error = check.get("error_norm")
        what = f"{check['kind']} {check['precision']}{' compiled' if check['compiled'] else ''}"
        wrong = "" if check.get("passed") else f" WRONG {check.get('error', '')}".rstrip()
        name = f"{what}: norm of the difference from float64 (bound {check['bound']:g})"
        lines.append([name, f"{'none' if error is None else format(error, '.1e')}{wrong}"])
    return table("fact | value", lines)


def _goals(results: Results) -> str:
    base, large = (results.fastest(shape).get("tflops") for shape in (BASE, "bert-large"))
    one = results.cell(shape=BASE, kind="eager", length=16, rows=1)
    kept = {cell["server"]: cell for cell in results.serve if cell.get("kept_rows_s") and cell["workers"] == 1}
    ours = max((float(kept[name]["kept_rows_s"]) for name in ("packed", "both") if name in kept), default=None)
    late = next((kept[name]["over"]["on_time"] for name in ("both", "packed") if "over" in kept.get(name, {})), None)
    rates = [rates for mix in MIXES if len(rates := results.rates(mix)) > 1 and "both" in rates]
    both = min((each.pop("both") / max(each.values()) for each in rates), default=None)
    goals: list[tuple[str, float, float | None, float | None]] = [
        ("packed, 16,384 tokens, BERT-base: share of the matmul rate", 0.4, base, results.ceiling),
        ("the same, BERT-large", 0.5, large, results.ceiling),
        ("one row of 16 tokens: launched over graph", 3, one.get("launched_ms"), one.get("graph_ms")),
        ("a long queue: `both` over the better of the others", 0.98, both, 1),
        ("served `mix`: packed or both over `packed_fifo`", 1.2, ours, kept.get("packed_fifo", {}).get("kept_rows_s")),
        ("share on time at 1.3 of the rate that is kept", 0.75, late, 1),
    ]
    lines = []
    for name, least, above, below in goals:
        met = "" if above is None or not below else "met" if above / below >= least else "missed"
        lines.append([name, f"{least:g}", over(above, below, unit=""), met])
    return table("what | at least | measured | ", lines)


def _static(results: Results) -> str:
    lines, gains, inflations = [], [], []
    for length, rows in ((length, rows) for length in LENGTHS for rows in ROWS):
        eager, dynamic, compiled, static = (
            results.cell(shape=BASE, kind=kind, length=length, rows=rows)
            for kind in ("eager", "dynamic", "compiled", "static")
        )
        best = min((cell["graph_ms"] for cell in (dynamic, compiled, static) if cell), default=None)
        if eager:
            gains.append(eager["launched_ms"] / eager["graph_ms"])
        if dynamic:
            inflations.append(dynamic["launched_ms"] / best)
        times = [cell.get(name) for cell in (eager, dynamic, compiled) for name in ("launched_ms", "graph_ms")]
        times += [static.get("graph_ms"), static.get("host_ms")]
        ratios = [over(eager.get("launched_ms"), eager.get("graph_ms")), over(dynamic.get("launched_ms"), best)]
        lines.append([f"{length} x {rows}", *map(number, times), *ratios])
    text = (
        "Milliseconds of a batch (tokens x rows). Rows are full and have no mask, so attention is the same everywhere; "
        "the engine's programs also take ragged rows. `dynamic` is one build of inductor for all shapes, `compiled` "
        "one for each shape. The last column is the launched dynamic run over the best graph of compiled layers; the "
        "Arlo paper has 1.22x to 3.56x."
    )
    for name, found in (("Eager launched over eager graph", gains), ("Dynamic over static", inflations)):
        if found:
            text += f" {name}: {min(found):.2f}x to {max(found):.2f}x, median {statistics.median(found):.2f}x."
    header = "tokens x rows | eager launched | graph | dynamic launched | graph | compiled launched | graph | "
    header += "engine graph | engine, host to host | launched / graph | dynamic / static"
    return f"{text}\n\n{table(header, lines)}"


def _others(results: Results) -> str:
    lines = []
    for shape, length, rows in ((s, n, r) for s in ("bert-large", "minilm-l6") for n in CORNERS for r in ROWS):
        eager, static = (results.cell(shape=shape, kind=k, length=length, rows=rows) for k in ("eager", "static"))
        times = [eager.get("launched_ms"), eager.get("graph_ms"), static.get("graph_ms"), static.get("host_ms")]
        rate = number((static or eager).get("tflops"), ".0f")
        lines.append([f"{shape} {length} x {rows}", *map(number, times), rate])
    return table("tokens x rows | eager launched | graph | engine graph | engine, host to host | TFLOP/s", lines)


def _packed(results: Results) -> str:
    lines = []
    for shape, tokens, mix in ((s, t, m) for s in results.shapes or [BASE] for t in BUCKETS for m in MIXES):
        at = [results.cell(shape=shape, kind=kind, tokens=tokens, mix=mix) for kind in reversed(PACKED_KINDS)]
        if not any(at) and shape != BASE:
            continue
        best: Cell = max(at, key=lambda cell: float(cell.get("tflops", 0)))
        times = [*(cell.get("graph_ms") for cell in at), at[-1].get("host_ms")]
        rates = [number(best.get("tflops"), ".0f"), share(best.get("tflops"), results.ceiling)]
        rows = f"{mix} ({best['rows']} rows)" if best else mix
        lines.append([f"{shape} {tokens:,}", rows, *map(number, times), *rates])
    text = "Milliseconds of a bucket filled with rows of the mix, as one graph. The rate counts what the rows need."
    header = "bucket | rows | eager | compiled | engine | engine, host to host | TFLOP/s | of the matmul rate"
    return f"{text}\n\n{table(header, lines)}"


def _mixes(results: Results) -> str:
    lines = []
    for mix, plan in ((mix, plan) for mix in MIXES for plan in PLANS):
        cell = results.plan(mix, plan)
        rate, tflops, joules = (cell.get(name) for name in ("rows_s", "tflops", "joules_row"))
        tokens = rate * cell["tokens"] / cell["rows"] if rate else None
        extras = [share(tflops, results.ceiling), number(joules and 1e3 * joules)]
        ratio = over(rate, results.plan(mix, "lengths8").get("rows_s"))
        lines.append([mix, plan, number(rate), number(tokens), ratio, *extras])
    text = (
        "`fifo32`: 32 rows in order of arrival, padded to the longest, launched. `-graphs`: the same on 16 recorded "
        "lengths. `lengths8`, `lengths16`: rows of one length class together, as graphs. `packed4096`: rows end to end "
        "up to so many tokens. `both`: each length class in the way that took less."
    )
    header = "lengths | plan | rows/s | tokens/s | over lengths8 | of the matmul rate | mJ a row"
    return f"{text}\n\n{table(header, lines)}"


def _serve(results: Results) -> str:
    cells = {(cell["server"], cell["workers"]): cell for cell in results.serve}
    lines = []
    for server, workers in dict.fromkeys([*((server, 1) for server in SERVERS), *cells]):
        cell = cells.get((server, workers), {})
        kept = f"failed: {cell['error'][:80]}" if "error" in cell else number(cell.get("kept_rows_s"))
        simulated = cell.get("simulated", {})
        values = [cell.get("mean_ms"), cell.get("p99_ms"), simulated.get("kept_rows_s"), simulated.get("mean_ms")]
        on_time = share(cell.get("over", {}).get("on_time"), 1)
        lines.append([f"{server}, {workers} worker{'s' * (workers > 1)}", kept, on_time, *map(number, values)])
    header = "server | rows/s, 99 % within 100 ms | on time at 1.3 of it | mean ms | p99 ms | "
    return table(f"{header}simulated rows/s | mean ms", lines)


def _ort(results: Results) -> str:
    if skipped := next((cell["skipped"] for cell in results.ort if "skipped" in cell), ""):
        return f"Not run: {skipped}."
    at = {(cell["length"], cell["rows"]): cell for cell in results.ort}
    lines = []
    for length in LENGTHS:
        cells = [at.get((length, rows), {}) for rows in (1, 8, 12, 32)]
        lines.append([str(length), *("failed" if "error" in c else number(c.get("host_ms")) for c in cells)])
    text = "Milliseconds host to host, BERT-base fp16 without TF32, a CUDA graph for each shape."
    return f"{text}\n\n{table('tokens | 1 row | 8 rows | 12 rows | 32 rows', lines)}"
