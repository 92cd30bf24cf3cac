"""`make cascade-demo`: a cascade on real text and real Triton workers, from training to a report.

    python -m benchmarks.demos.cascade [--depths 1 6] [--rows 40000] [--texts 1500]

MiniLM cut after some of its layers (benchmarks.demos.train) classifies definitions of nouns into 24 kinds. It is
compiled and recorded on the engines that serve.
Temperatures and thresholds are found on two splits, and all reported figures are of a third one. Then `arlo serve`
serves the cascade on one worker, and texts of the third split go to it and to its last stage alone, in turn, one at a
time; then both under an open load. Every served row is compared with its offline answer.

Writes result.json and index.html into reports/cascade; the exit code is 1 if a row was lost or differed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.cascade.decide import REASONS
from arlo.client import AsyncClient, Client
from arlo.clock import monotonic_s
from benchmarks.demos.common import command, ended, say, send, served, summary
from benchmarks.demos.data import cache_root
from benchmarks.demos.train import ROWS
from benchmarks.harness import machine

OUTPUTS = ["logits", "cascade_stage", "cascade_confidence", "cascade_reason"]
LAST = {"cascade": "last"}
DATA = "nouns"


def prepare(work: Path, depths: Sequence[int], rows: int, recorded: int | None) -> tuple[Path, Path]:
    """Make models, engines, records and thresholds, or reuse existing ones; returns cascade.json and the texts."""
    root = cache_root() / "cascade"
    say("data and models")
    command("benchmarks.demos.data", DATA)
    command("benchmarks.demos.train", "--data", DATA, "--depths", *map(str, depths), "--rows", str(rows))
    made_by_depth = "" if rows == ROWS else f"-{rows}"
    folders = {f"layers-{depth}": root / f"{DATA}-l{depth}{made_by_depth}" for depth in depths}
    stages = []
    for name, folder in folders.items():
        repository = work / folder.name.removesuffix(made_by_depth)
        say(f"engines of {name}")
        options = ["--name", repository.name, "--lengths", "16,32,64,96", "--max-batch", "4", "--no-dynamic"]
        command("arlo.cli", "compile", folder / "model.onnx", "--out", repository, *options)
        stages.append(f"{name}={repository}")
    texts = work / "texts.jsonl"
    parts = [(root / DATA / f"{split}.jsonl").read_text().splitlines() for split in ("fit", "select", "test")]
    texts.write_text("".join(f"{line}\n" for part in parts for line in part[: recorded and recorded // 3]))
    cascade = work / "cascade.json"
    say("every stage on every text, and operating points")
    fit(*stages, "--name", "glosses", "--out", cascade, "--data", texts)
    return cascade, texts


def fit(*words: str | Path) -> None:
    """Run `arlo fit`. It reports a bar missed on these texts, which does not stop the demo."""
    command("arlo.cli", "fit", *words, "--tolerance", "0.01", fine=(0, 1))


def one_at_a_time(address: str, model: str, tokenizer: Path, rows: Sequence[str]) -> dict[str, Any]:
    """Send each row through the cascade and through its last stage alone, in turn; milliseconds and answers."""
    times: dict[str, list[float]] = {"cascade": [], "last": []}
    said: dict[str, list[dict[str, Any]]] = {"cascade": [], "last": []}
    with Client(address, model=model, tokenizer=tokenizer) as client:
        for i, row in enumerate(rows):
            both = [("cascade", None), ("last", LAST)]
            for name, parameters in both if i % 2 else reversed(both):
                begun = monotonic_s()
                answer = client.infer(row, outputs=OUTPUTS, parameters=parameters)
                times[name].append(1000 * (monotonic_s() - begun))
                said[name].append({key: answer[key].tolist() for key in OUTPUTS})
            if i % 250 == 249:
                say(f"{i + 1} of {len(rows)} texts, one at a time")
    return {"times": times, "said": said}


async def under_load(
    client_of: Callable[[], AsyncClient], rows: Sequence[str], rate: float, parameters: dict[str, str] | None
) -> dict[str, Any]:
    """Send rows at random moments, on average `rate` a second."""
    reasons: Counter[str] = Counter()
    async with client_of() as client:

        async def ask(row: str) -> None:
            answer = await client.infer(row, outputs=OUTPUTS, parameters=parameters)
            reasons[REASONS[int(answer["cascade_reason"])]] += 1

        return {**await send(ask, rows, rate), "reasons": dict(reasons)}


def measure(work: Path, cascade: Path, texts: Path, count: int) -> tuple[dict[str, Any], int]:
    """The figures, and how many rows differed from their offline answers."""
    from arlo.cascade.manifest import CascadeManifest
    from arlo.cascade.records import Records, read_data
    from arlo.cascade.study import load_study
    from arlo.cli.fit.served import compare

    manifest, data = CascadeManifest.load(cascade), read_data(texts)
    assert manifest.data is not None
    records = Records(work / "records", data)
    test = load_study(manifest, work, data, records, shares=manifest.data.split, seed=manifest.data.seed).of(2)
    wanted = test.play(manifest.point().all_rules).ended
    rows, labels = [data.examples[row].text for row in test.row[:count]], test.truth[:count]
    with served(work, f'[cascade]\nmanifest = "{cascade}"\nslo_ms = 200\n') as ready:
        address = ready["grpc"]
        tokenizer = work / manifest.stages[0].repository / "tokenizer.json"
        alone = one_at_a_time(address, manifest.name, tokenizer, rows)
        last_ms = float(np.mean(alone["times"]["last"]))
        say("the whole third split through the gateway")
        through = compare(
            test, data, manifest.point(), target=address, model=manifest.name, tokenizer=tokenizer, seed=0
        )
        say("under load")
        client_of = functools.partial(AsyncClient, address, model=manifest.name, tokenizer=tokenizer)
        rates = [round(share * 1000 / last_ms) for share in (0.5, 0.9)]
        loads = [
            {
                "cascade": asyncio.run(under_load(client_of, rows, rate, None)),
                "last": asyncio.run(under_load(client_of, rows, rate, LAST)),
            }
            for rate in rates
        ]
    said = alone["said"]["cascade"]
    stage = np.array([int(one["cascade_stage"]) for one in said])
    answer = np.array([int(np.argmax(one["logits"])) for one in said])
    last = np.array([int(np.argmax(one["logits"])) for one in alone["said"]["last"]])
    differ = int(((stage != wanted.stage[:count]) | (answer != wanted.answer[:count])).sum())
    reasons = Counter(REASONS[int(one["cascade_reason"])] for one in said)
    result = {
        "machine": machine(),
        "rows": len(rows),
        "stages": [{"name": s.name, "accuracy": s.accuracy} for s in manifest.stages],
        "cascade": {
            "accuracy": float((answer == labels).mean()),
            "agreement": float((answer == last).mean()),
            "exits": np.bincount(stage, minlength=len(manifest.stages)).tolist(),
            "point": manifest.point().name,
            **summary(alone["times"]["cascade"]),
        },
        "last_stage": {"accuracy": float((last == labels).mean()), **summary(alone["times"]["last"])},
        "degraded": sum(count for reason, count in reasons.items() if REASONS.index(reason) >= 3),
        "differ_from_offline": differ,
        "through_gateway": through,  # `arlo fit --target`
        "load": loads,
    }
    return result, differ + sum(through[what] for what in ("stage", "answer", "confidence"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 6], help="layers of the stages, ascending")
    parser.add_argument("--rows", type=int, default=ROWS, help="texts to train with")
    parser.add_argument("--recorded", type=int, metavar="N", help="of all texts, that are recorded (default: all)")
    parser.add_argument("--texts", type=int, default=1500, help="of the third split, that are sent one at a time")
    parser.add_argument("--out", type=Path, default=Path("reports/cascade"))
    args = parser.parse_args()
    parts = ["demo", *args.depths, args.rows]
    parts += [args.recorded] if args.recorded else []
    work = cache_root() / "cascade" / "-".join(map(str, parts))
    work.mkdir(parents=True, exist_ok=True)
    cascade, texts = prepare(work, args.depths, args.rows, args.recorded)
    result, differ = measure(work, cascade, texts, args.texts)
    args.out.mkdir(parents=True, exist_ok=True)
    fit(cascade, "--data", texts, "--report", args.out / "index.html")
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + os.linesep)
    _tell(result)
    print(f"\n{args.out / 'result.json'}, {args.out / 'index.html'}")
    return 1 if differ else 0


def _tell(result: dict[str, Any]) -> None:
    cascade, last = result["cascade"], result["last_stage"]
    print(f"\n{result['rows']} texts that nothing was chosen on, one at a time:")
    for name, one in (("cascade", cascade), ("last stage alone", last)):
        print(f"  {name:18} {one['accuracy']:.1%} right, mean {one['mean_ms']:.2f} ms, p99 {one['p99_ms']:.2f} ms")
    ratio = cascade["mean_ms"] / last["mean_ms"]
    print(f"  ratio              {ratio:.2f} of the time; agreement {cascade['agreement']:.1%}")
    shares = ", ".join(f"{count / result['rows']:.0%}" for count in cascade["exits"])
    other = result["differ_from_offline"]
    print(f"  answered by stage  {shares}; {result['degraded']} degraded; {other} other than offline")
    for load in result["load"]:
        a, b = load["cascade"], load["last"]
        print(
            f"  at {a['rate']}/s: cascade mean {a['mean_ms']:.1f}, p99 {a['p99_ms']:.1f} ms; "
            f"last stage alone mean {b['mean_ms']:.1f}, p99 {b['p99_ms']:.1f} ms"
        )


if __name__ == "__main__":
    raise SystemExit(ended(main))
