"""One comparison: start the servers, check their vectors, search their rates in turn, measure them at an equal one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Manifest
from arlo.compile.steps.resolve import demo_model_path
from arlo.errors import WorkerError
from arlo.traces.lengths import parse_length_spec
from arlo.traces.text import TextSource
from benchmarks.peers.load import Server, client, rest, run, settle
from benchmarks.peers.rivals import MAX_TOKENS, RIVALS, Rival, Setting
from benchmarks.peers.search import Run, Search, equal_rate

TEXTS = 512  # different ones
CHECKED = 16  # texts whose vectors are compared
TOLERANCE = 1e-3  # largest difference of a component
LEAST_COSINE = 0.9999  # between two servers' vectors of a text
START_S = 300.0
POLL_S = 0.02
WARM_UP = 48  # texts before anything is measured
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a comparison."""

    rivals: tuple[Rival, ...]
    duration_s: float
    slo_ms: int
    rates: tuple[float, ...]
    rounds: int  # at the equal rate
    rate: float | None  # the equal one; None: found
    lengths: str
    build_s: float  # for Arlo's runtimes, the first time
    seed: int = 0


@dataclasses.dataclass(kw_only=True)
class Figures:
    """The figures of one server. Times of the equal rate are medians over its rounds."""

    name: str
    what: str
    start_s: float
    difference: float | None = None  # largest, of a vector's component, from the first server's
    cosine: float | None = None  # the least, with the first server's vectors
    rate: float | None = None  # highest of the grid with 99 % on time
    more: bool = False  # the grid's end
    on_time_rows_s: float | None = None  # in the run at that rate
    equal: dict[str, float | None] = dataclasses.field(default_factory=dict)
    runs: list[Run] = dataclasses.field(default_factory=list)


def make_texts(spec: str, seed: int) -> list[str]:
    """Texts with lengths drawn by `spec`, cut to the model's limit."""
    lengths = parse_length_spec(spec).draw(TEXTS, np.random.default_rng([seed, 1]))
    source = TextSource(demo_model_path())
    rows = (source.row(int(np.clip(length, 3, MAX_TOKENS)), key).text for key, length in enumerate(lengths))
    return [text for text in rows if text is not None]


async def compare(options: Options, say: Say) -> dict[str, Any]:
    """All figures, in JSON types. WorkerError if a server does not start, or its vectors differ."""
    texts = make_texts(options.lengths, options.seed)
    with tempfile.TemporaryDirectory(prefix="arlo-peers-") as name:
        work = Path(name)
        for rival in options.rivals:
            if rival.name == "arlo":
                await _build_arlo(options, work, say)
                continue
            say(f"{rival.name}: a first start, not measured")  # reads its files from disk; one optimises its graph
            async with contextlib.AsyncExitStack() as once:
                await _start(rival, _setting(work, f"{rival.name}-first", options), texts[0], once)
        async with contextlib.AsyncExitStack() as stack:
            found: dict[str, tuple[Server, Figures]] = {}
            vectors: dict[str, NDArray[np.float64]] = {}
            for rival in options.rivals:
                say(f"{rival.name}: starting")
                server, start_s = await _start(rival, _setting(work, rival.name, options), texts[0], stack)
                figures = Figures(name=rival.name, what=rival.what, start_s=start_s)
                found[rival.name] = server, figures
                vectors[rival.name] = await _vectors(server, texts)
                first = next(iter(vectors))
                figures.difference = float(np.abs(vectors[rival.name] - vectors[first]).max())
                say(f"{rival.name}: first vector after {start_s:.1f} s, {figures.difference:.1e} from that of {first}")
                figures.cosine = float(cosines(vectors[rival.name], vectors[first]).min())
                if figures.difference > TOLERANCE or figures.cosine < LEAST_COSINE:
                    raise WorkerError(
                        f"{rival.name} and {first} differ by {figures.difference:.1e} (at most {TOLERANCE:g}), their "
                        f"least cosine is {figures.cosine:.6f} (at least {LEAST_COSINE:g}): they do not compute the "
                        "same vectors; leave one out with --only"
                    )
            await _search(options, found, texts, say)
            rate = options.rate or equal_rate(options.rates, [figures.rate for _, figures in found.values()])
            await _equal(options, rate, found, texts, say)
        return {
            "slo_ms": options.slo_ms,
            "duration_s": options.duration_s,
            "lengths": options.lengths,
            "grid": options.rates,
            "equal_rate": rate,
            "servers": [dataclasses.asdict(figures) for _, figures in found.values()],
        }


def cosines(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines [rows] of the angles between the rows of two arrays."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / lengths)


def _setting(work: Path, name: str, options: Options) -> Setting:
    folder = work / name
    folder.mkdir(exist_ok=True)
    return Setting(work=folder, slo_ms=options.slo_ms)


async def _start(rival: Rival, setting: Setting, text: str, stack: contextlib.AsyncExitStack) -> tuple[Server, float]:
    """The server, and the seconds from its start to its first vector."""
    start_s = time.monotonic()
    server = await stack.enter_async_context(rival.running(setting))
    async with client(5.0) as session:
        while await server.vector(session, text) is None:
            ended = server.ended()
            if ended or time.monotonic() - start_s > START_S:
                wrong = "ended" if ended else f"had no vector after {START_S:g} s"
                raise WorkerError(
                    f"{rival.name} {wrong}; leave it out with --only, or look:\n{_last_lines(setting.work)}"
                )
            await asyncio.sleep(POLL_S)
    return server, time.monotonic() - start_s


def _last_lines(folder: Path) -> str:
    logs = sorted(folder.glob("*.log"))
    return "\n".join(f"{log.name}: ...{log.read_text(errors='replace')[-1500:]}" for log in logs)


async def _build_arlo(options: Options, work: Path, say: Say) -> None:
    """Let `arlo up` compile everything it will serve; else it would build during the measurement."""
    setting = dataclasses.replace(_setting(work, "arlo-build", options), events=True)
    log = setting.work / "arlo.log"
    deadline_s = time.monotonic() + options.build_s
    say("arlo: compiling what is missing, or finding it in the cache")
    async with contextlib.AsyncExitStack() as stack:
        _, start_s = await _start(RIVALS["arlo"], setting, "a text", stack)
        while not built(lines := json_lines(log.read_text(errors="replace"))):
            if failed := next((line for line in lines if line.get("event") == "build_failed"), None):
                raise WorkerError(f"Arlo's runtimes were not built; {failed['log']} says why")
            if time.monotonic() > deadline_s:
                raise WorkerError(f"Arlo's runtimes were not built in {options.build_s:g} s: give --build-seconds more")
            await asyncio.sleep(0.5)
    say(f"arlo: compiled; its first vector came after {start_s:.1f} s")


def json_lines(log: str) -> list[dict[str, Any]]:
    """The JSON objects among a log's lines; the last line may not be whole yet."""
    found = []
    for line in log.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            if line.startswith("{"):
                found.append(json.loads(line))
    return found


def built(lines: Sequence[dict[str, Any]]) -> bool:
    """Whether `arlo up` logged that it deployed its build, or its repository has runtimes of single lengths."""
    if any(line.get("event") == "built" for line in lines):
        return True
    ready = next((line for line in lines if "config" in line and "api" in line), None)
    if ready is None:
        return False
    manifest = Manifest.load(Path(ready["config"]).parent / "repository")
    return any(not runtime.dynamic for runtime in manifest.runtimes)


async def _vectors(server: Server, texts: Sequence[str]) -> NDArray[np.float64]:
    """Vectors of the first texts, float64[CHECKED, dims], after some to warm up."""
    async with client(30.0) as session:
        for begin in range(0, WARM_UP, 4):  # batches, too
            await asyncio.gather(*(server.vector(session, text) for text in texts[begin : begin + 4]))
        found = [await server.vector(session, text) for text in texts[:CHECKED]]
    if any(vector is None for vector in found):
        raise WorkerError(f"{server.name} did not answer one text at a time: leave it out with --only")
    return np.array(found)


async def _search(options: Options, found: dict[str, tuple[Server, Figures]], texts: Sequence[str], say: Say) -> None:
    """Try each server's next rate in turn, until all are found."""
    searches = {name: Search(options.rates) for name in found}
    while any(search.next is not None for search in searches.values()):
        for name, search in searches.items():
            rate = search.next
            if rate is None:
                continue
            server, figures = found[name]
            got = await _run(options, server, texts, rate, stop_early=True)
            figures.runs.append(got)
            search.tell(got.passed)
            if got.passed:
                figures.on_time_rows_s = got.on_time_rows_s
            figures.rate, figures.more = search.found, search.at_end
            say(f"{name}: {rate:g} rows/s {'on time' if got.passed else 'too late'}")


async def _equal(
    options: Options, rate: float, found: dict[str, tuple[Server, Figures]], texts: Sequence[str], say: Say
) -> None:
    """Measure all servers at one rate, in turn, `rounds` times."""
    fields = ("p50_ms", "p98_ms", "cpu_ms", "rss_mb")
    got: dict[str, list[Run]] = {name: [] for name in found}
    for number in range(options.rounds):
        for name, (server, _) in found.items():
            got[name].append(await _run(options, server, texts, rate, stop_early=False, seed=1 + number))
            say(f"{name}: round {number + 1} of {options.rounds} at {rate:g} rows/s")
    for name, (_, figures) in found.items():
        for field in fields:
            values = [value for each in got[name] if (value := getattr(each, field)) is not None]
            figures.equal[field] = statistics.median(values) if values else None
        figures.equal["on_time"] = sum(each.on_time for each in got[name]) / max(
            1, sum(each.sent for each in got[name])
        )
        figures.runs += got[name]


async def _run(
    options: Options, server: Server, texts: Sequence[str], rate: float, *, stop_early: bool, seed: int = 0
) -> Run:
    slo_s = options.slo_ms / 1e3
    await settle(server, texts[0], slo_s)
    found = await run(
        server,
        texts,
        rate=rate,
        duration_s=options.duration_s,
        slo_s=slo_s,
        seed=options.seed + seed,
        stop_early=stop_early,
    )
    await rest(server)
    return found
