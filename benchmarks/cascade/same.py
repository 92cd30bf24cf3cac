"""Row by row: what `arlo serve` answers, and what was found offline, on real Triton workers that replay records.

    python -m benchmarks.cascade.same [--rows 40000] [--clients 4] [--workers 2]

Clients side by side send requests of 1 to 32 rows of mixed lengths, at operating points of every kind: hard thresholds,
thresholds by length, the soft rule (Tabi Eq. 4) with a seed, a mean of both answers (Eq. 6), a client's own threshold.
Stage, reason, answer and confidence of each row are compared with `arlo.cascade.decide.walk` on the same records, and
where one stage answers, its logits bit for bit. A row that differs is an error. Needs what `make cascade-demo` records.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray

from arlo.cascade.decide import REASONS, Ended, answers, walk
from arlo.cascade.manifest import Point
from arlo.cascade.spec import Ensemble, Rule, hard
from benchmarks import harness
from benchmarks.cascade.cached import cache_root
from benchmarks.cascade.served import CLS, Population, population, served

OUTPUTS = ("logits", "cascade_stage", "cascade_reason", "cascade_confidence")
MOST_ROWS, LONGEST = 32, 512  # of a request; tokens
CLOSE = 1e-6  # of confidences: float32 on the wire


def points_of(people: Population) -> tuple[Point, ...]:
    """One of each kind; the first, in force, is the one that mixes answers."""
    found = people.manifest.point()
    weights = tuple(float((each.answer == people.study.truth).mean()) for each in people.study.said)

    def other(name: str, rule: Rule, **fields: Any) -> Point:
        return dataclasses.replace(found, name=name, rules=((rule,),), **fields)

    return (
        other("mixed", hard(0.9), ensemble=Ensemble(kind="calibrated", weights=weights)),
        found,
        other("lengths", Rule(t=((64, 0.7), (256, 0.85), (LONGEST, 0.95)))),
        other("soft", Rule(kind="soft", c=0.5, k=10.0)),
    )


@dataclasses.dataclass(frozen=True)
class Asked:
    """One request: a record and a length [rows] each, and what was wished."""

    record: NDArray[np.int64]
    length: NDArray[np.int64]
    point: Point
    seed: int
    least: float  # -1: not given

    @property
    def parameters(self) -> dict[str, Any]:
        own = {"cascade_min_confidence": self.least} if self.least >= 0 else {}
        return {"cascade": self.point.name, "cascade_seed": self.seed, **own}

    def ended(self, people: Population) -> Ended:
        """As found offline."""
        said = [
            answers(stage.spec, recorded.logits[self.record], self.length)
            for stage, recorded in zip(people.manifest.stages, people.study.recorded, strict=True)
        ]
        rows = np.arange(len(self.record))
        return walk(self.point.all_rules, said, self.length, row=rows, seed=self.seed, least=self.least)


def asked(random: np.random.Generator, records: int, points: Sequence[Point]) -> Asked:
    rows = int(random.integers(1, MOST_ROWS + 1))
    return Asked(
        record=random.integers(0, records, rows),
        length=random.integers(2, LONGEST + 1, rows),
        point=points[int(random.integers(len(points)))],
        seed=int(random.integers(1 << 40)),
        least=float(random.random()) if random.random() < 0.2 else -1.0,
    )


async def answer(client: Any, name: str, wanted: Asked) -> dict[str, NDArray[Any]]:
    """The outputs by name."""
    width = int(wanted.length.max())
    mask = (np.arange(width) < wanted.length[:, None]).astype(np.int64)
    ids = 2000 * mask
    ids[:, 0], ids[:, 1] = CLS, wanted.record
    inputs = []
    for key, array in (("input_ids", ids), ("attention_mask", mask)):
        tensor = triton.InferInput(key, array.shape, "INT64")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    outputs = [triton.InferRequestedOutput(output) for output in OUTPUTS]
    got = await client.infer(name, inputs, outputs=outputs, parameters=wanted.parameters)
    return {output: got.as_numpy(output) for output in OUTPUTS}


def same(got: dict[str, NDArray[Any]], wanted: Ended, people: Population, of: Asked) -> NDArray[np.bool_]:
    """Which rows [rows] are as they were found offline."""
    logits = np.stack([recorded.logits[of.record] for recorded in people.study.recorded])
    alone = (wanted.ran.sum(axis=1) == 1) | (of.point.all_rules.ensemble.kind == "none")
    bits = got["logits"] == logits[wanted.stage, np.arange(len(of.record))].astype(np.float32)
    return np.asarray(
        (got["cascade_stage"] == wanted.stage)
        & (got["cascade_reason"] == wanted.reason)
        & (got["logits"].argmax(axis=1) == wanted.answer)
        & (np.abs(got["cascade_confidence"] - wanted.confidence) <= CLOSE)
        & (bits.all(axis=1) | ~alone)
    )


async def compare(endpoint: str, people: Population, rows: int, clients: int) -> tuple[Counter[str], int]:
    """Rows by point, stage and reason, and how many differ."""
    counts: Counter[str] = Counter()
    different = 0
    points = points_of(people)

    async def client(seed: int) -> None:
        nonlocal different
        random = np.random.default_rng(seed)
        async with triton.InferenceServerClient(endpoint) as connection:
            while sum(counts.values()) < rows:
                one = asked(random, len(people.study.row), points)
                got = await answer(connection, people.manifest.name, one)
                wanted = one.ended(people)
                good = same(got, wanted, people, one)
                different += int((~good).sum())
                for stage, reason in zip(wanted.stage, wanted.reason, strict=True):
                    counts[f"{one.point.name} {stage} {REASONS[reason]}"] += 1

    await asyncio.gather(*(client(seed) for seed in range(clients)))
    return counts, different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cascade", type=Path, default=cache_root() / "cascade" / "demo-1-6-40000")
    args = parser.parse_args()
    people = population(args.cascade, "layers")
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), people, args.workers, 1.0, points=points_of(people)) as (endpoint, _),
    ):
        counts, different = asyncio.run(compare(endpoint, people, args.rows, args.clients))
    total = sum(counts.values())
    for name, count in sorted(counts.items()):
        print(f"{name:24} {count:7,}")
    print(f"{total:,} rows, {different} of them other than offline")
    path = harness.save(
        "cascade_same",
        f"python -m benchmarks.cascade.same --rows {args.rows} --clients {args.clients} --workers {args.workers}",
        {"rows": total, "different": different, "ended": dict(sorted(counts.items()))},
    )
    print(f"-> {path}")
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
