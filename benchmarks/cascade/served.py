"""A cascade on real Triton workers whose engines replay records, beside the same rows simulated, and beside its last
stage alone on the same workers.

    python -m benchmarks.cascade.served [--slower 20] [--seconds 30] [--workers 8]

The rows say what a cascade of real models said of real text (`make cascade-demo` records it); the engines take the time
of an A100's published tables, `--slower` times, so that two cores carry the load: `layers` gives the last stage that of
BERT-base, and the first a sixth of it, as the recorded models have one layer and six; `sizes` gives them those of
BERT-base and BERT-large, which are much more alike.
Every worker holds both stages. The highest rate with 99 % on time is found in simulation for the cascade and for the
last stage alone; then both are offered shares of it on real workers, the same arrivals on both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.cascade.manifest import CascadeManifest, Point, VocabularyFile, repository_hash
from arlo.cascade.records import Records, read_data
from arlo.cascade.spec import Rules
from arlo.cascade.study import Study, load_study
from arlo.errors import EnvironmentProblem
from arlo.replay import ReplayOptions, run_replay
from arlo.replay.records import latency_us
from arlo.simulator.cascade.engine import CascadeResult, CascadeRun, Journeys, run
from arlo.simulator.profiles import load_profile
from arlo.simulator.profiles.tables import by_tokens
from arlo.traces import Row, Trace
from arlo.traces.lengths import NAMED
from arlo.workers.emulated.repository import emulated
from benchmarks import harness
from benchmarks.batches_served import serving
from benchmarks.cascade.cached import cache_root
from benchmarks.replayed import write_replayed_repository

SLO_MS = 100.0
STEP = 64
ROWS = 32  # of a batch
RECORDS = 2000
ATTAINMENT = 0.99
CLS = 101
STAGES = ("base", "large")


@dataclasses.dataclass(frozen=True)
class Population:
    """What was recorded of real text, by two stages."""

    study: Study
    manifest: CascadeManifest
    times: str  # layers or sizes: what the engines take

    @property
    def rules(self) -> Rules:
        return self.manifest.point().all_rules

    @property
    def journeys(self) -> Journeys:
        said = self.study.said
        return Journeys(
            confidence=np.stack([each.confidence for each in said], axis=1),
            correct=np.stack([each.answer == self.study.truth for each in said], axis=1),
        )


class Named:
    """Rows whose second token names their record."""

    def row(self, length: int, key: int) -> Row:
        return Row(ids=np.array([CLS, key, *([2000] * (length - 2))], np.int64), text=None)


def population(folder: Path, times: str) -> Population:
    """The test split of the demo's cascade. EnvironmentProblem where it has not run."""
    if not (folder / "cascade.json").exists():
        raise EnvironmentProblem(f"{folder} has no cascade.json: run `make cascade-demo`")
    manifest, data = CascadeManifest.load(folder), read_data(folder / "texts.jsonl")
    assert manifest.data is not None
    records = Records(folder / "records", data)
    study = load_study(manifest, folder, data, records, shares=manifest.data.split, seed=manifest.data.seed).of(2)
    which = np.zeros(len(study.row), np.bool_)
    which[:RECORDS] = True
    return Population(study.take(which), manifest, times)


def runtimes(times: str, slower: float = 1.0, step: int = STEP) -> list[Any]:
    """Of each stage, at all lengths, which are `step` apart. `times`: layers or sizes."""
    base = load_profile("bert-base-a100")
    if times == "layers":
        pairs = [(base, slower / 6), (base, slower)]
    else:
        pairs = [(base, slower), (by_tokens("bert-large-a100", "bert-large-a100-fp16"), slower)]
    return [
        [
            dataclasses.replace(each, points=tuple((n, rows, factor * ms) for n, rows, ms in each.points))
            for each in profile.static_runtimes(range(step, 513, step), max_batch=ROWS)
        ]
        for profile, factor in pairs
    ]


def arrivals(rate: float, seconds: float, count: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Poisson arrivals in ns, and lengths, which are a property of the record."""
    gaps = np.random.default_rng(2).exponential(1e9 / rate, max(1, round(rate * seconds)))
    at = np.cumsum(gaps).astype(np.int64)
    of_record = np.random.default_rng(1).choice(NAMED["mix"]().tokens, count)
    of_record = np.minimum(np.maximum(STEP, -(-of_record // STEP) * STEP), 512).astype(np.int32)
    return at, of_record[np.arange(len(at)) % count]


def simulated(
    people: Population,
    rate: float,
    seconds: float,
    workers: int,
    *,
    alone: bool,
    slower: float,
    hop_ms: float = 0.0,
    step: int = STEP,
) -> CascadeResult:
    """In times of the slower engines."""
    at, lengths = arrivals(rate, seconds, len(people.study.row))
    stages = runtimes(people.times, slower, step)
    return run(
        CascadeRun(
            stages=stages,
            workers=(0, workers) if alone else (workers,),
            rules=people.rules,
            journeys=people.journeys,
            arrived_ns=at,
            lengths=lengths,
            slo_ms=SLO_MS * slower,
            timeout_ms=10 * SLO_MS * slower,
            overhead_ms=hop_ms,
            hop_out_ms=hop_ms,
            hop_back_ms=hop_ms,
        )
    )


def highest(people: Population, workers: int, *, alone: bool = False, step: int = STEP) -> float:
    """Rows a second with ATTAINMENT on time, at the speed of the profile."""
    low, high = 100.0, 1_000_000.0
    for _ in range(14):
        rate = (low * high) ** 0.5
        good = simulated(people, rate, 4.0, workers, alone=alone, slower=1.0, step=step).on_time >= ATTAINMENT
        low, high = (rate, high) if good else (low, rate)
    return low


@contextlib.contextmanager
def served(
    work: Path,
    people: Population,
    workers: int,
    slower: float,
    *,
    alone: bool = False,
    points: Sequence[Point] = (),
) -> Iterator[tuple[str, int]]:
    """`arlo serve` of both stages, or of the last alone; its data port, and the port of /metrics. `points`: in place of
    the population's own, the first one in force."""
    for stage, models, recorded in zip(STAGES, runtimes(people.times), people.study.recorded, strict=True):
        write_replayed_repository(
            work / ("repository" if alone and stage == STAGES[-1] else stage),
            model=stage,
            runtimes=[emulated(each, model=stage, slower=slower) for each in models],
            logits=np.asarray(recorded.logits, np.float32),
        )
    slo_ms = round(SLO_MS * slower)
    if alone:
        with serving(work, slo_ms=slo_ms, settings={"deployment": {"runtimes": "bundle"}}, workers=workers) as (
            _,
            at,
            port,
        ):
            yield at, port
        return
    points = points or (people.manifest.point(),)
    manifest = dataclasses.replace(
        people.manifest,
        task="emulated",
        stages=tuple(
            dataclasses.replace(
                stage, name=name, repository=name, manifest_sha256=repository_hash(work / name), importance=None
            )
            for name, stage in zip(STAGES, people.manifest.stages, strict=True)
        ),
        vocabularies=(VocabularyFile(special=(CLS,)),),
        points=tuple(points),
        default_point=points[0].name,
    )
    manifest.save(work)
    (work / "repository").mkdir(exist_ok=True)
    cascade = {"manifest": str(work / "cascade.json"), "slo_ms": slo_ms}
    with serving(work, slo_ms=slo_ms, settings={"cascade": cascade, "model": {}}, workers=workers) as (_, at, port):
        yield at, port


def replayed(endpoint: str, people: Population, rate: float, seconds: float, slower: float) -> Any:
    at, lengths = arrivals(rate, seconds, len(people.study.row))
    records = np.arange(len(at), dtype=np.int64) % len(people.study.row)
    trace = Trace(arrived_at_s=at * 1e-9, length=lengths, text_id=records)
    return run_replay(trace, ReplayOptions(endpoint=endpoint, slo_ms=SLO_MS * slower, timeout_ms=0), source=Named())


def exits(port: int) -> dict[str, float]:
    """Rows by stage and reason, of /metrics."""
    import re
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.findall(r'arlo_cascade_exits_total\{model="[^"]*",stage="([^"]*)",reason="([^"]*)"\} (\S+)', text)
    return {f"{stage.rpartition('.')[2]} {reason}": float(count) for stage, reason, count in found if float(count)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slower", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run on real workers")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--times", choices=("layers", "sizes"), default="layers")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.75, 0.95], help="shares of what is carried")
    parser.add_argument("--cascade", type=Path, default=cache_root() / "cascade" / "demo-1-6-40000")
    args = parser.parse_args()
    people = population(args.cascade, args.times)
    most = {name: highest(people, args.workers, alone=name == "alone") for name in ("cascade", "alone")}
    one_length = highest(people, args.workers, step=512)
    print(
        f"simulated, {ATTAINMENT:.0%} on time: {most['cascade']:,.0f} rows/s, last stage alone {most['alone']:,.0f}: "
        f"{most['cascade'] / most['alone']:.2f} times; cascade without lengths {one_length:,.0f}: "
        f"{most['cascade'] / one_length:.2f} times"
    )
    rows: list[dict[str, Any]] = []
    for name in ("alone", "cascade"):
        alone = name == "alone"
        with (
            tempfile.TemporaryDirectory() as folder,
            served(Path(folder), people, args.workers, args.slower, alone=alone) as (endpoint, port),
        ):
            calm = 0.05 * most[name] / args.slower
            quiet = replayed(endpoint, people, calm, 10.0, args.slower)
            fast = simulated(people, calm, 10.0, args.workers, alone=alone, slower=args.slower)
            extra_ms = float(np.mean(latency_us(quiet.records)) / 1000 - fast.mean_ms)
            before = {} if alone else exits(port)
            for load in args.loads:
                rate = load * most[name] / args.slower
                real = replayed(endpoint, people, rate, args.seconds, args.slower)
                twin = simulated(
                    people, rate, args.seconds, args.workers, alone=alone, slower=args.slower, hop_ms=extra_ms / 3
                )
                summary = real.summary
                after = {} if alone else exits(port)
                found = {
                    "contender": name,
                    "load": load,
                    "rate_rps": rate,
                    "rows": summary.requests,
                    "real": {
                        "on_time": summary.slo_attainment,
                        "mean_ms": summary.latency.mean_ms,
                        "p98_ms": summary.latency.p98_ms,
                        "late_sends": summary.sends.late / summary.requests,
                        "exits": {key: after[key] - before.get(key, 0) for key in after},
                    },
                    "simulated": {
                        "on_time": twin.on_time,
                        "mean_ms": twin.mean_ms,
                        "p98_ms": twin.p98_ms,
                        "exits": [round(share * twin.rows) for share in twin.exits],
                    },
                    "extra_ms": extra_ms,
                }
                before = after
                rows.append(found)
                a, b = found["real"], found["simulated"]
                print(
                    f"{name:8} {load:4.2f} {rate:7.0f}/s on time {a['on_time']:.3f} ({b['on_time']:.3f}) mean "
                    f"{a['mean_ms']:7.1f} ({b['mean_ms']:7.1f}) p98 {a['p98_ms']:7.1f} ({b['p98_ms']:7.1f}) "
                    f"{a['exits']} ({b['exits']}) late {a['late_sends']:.1%}",
                    flush=True,
                )
    options = f"--slower {args.slower:g} --seconds {args.seconds:g} --workers {args.workers} --times {args.times}"
    path = harness.save(
        f"cascade_served_{args.times}",
        f"python -m benchmarks.cascade.served {options}",
        {"simulated_most_rps": {**most, "cascade, one length": one_length}, "runs": rows},
    )
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
