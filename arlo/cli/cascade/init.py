"""`arlo cascade init`: stages that fit together, as a cascade.json without points."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import Manifest
from arlo.cli.cascade.common import names
from arlo.cli.text import print_json
from arlo.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def run(args: argparse.Namespace) -> int:
    """Check and write."""
    import dataclasses

    from arlo.cascade.manifest import CascadeManifest, Importance, Stage, VocabularyFile, check_judged, repository_hash

    given = dict(_pair(text, "--stage") for text in args.stage)
    if len(given) != len(args.stage):
        raise ConfigError("two stages have one name")
    for name in (args.name, *given):
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a cascade or stage cannot be called {name!r}: letters, digits, '.', '_' and '-' are for names"
            )
    manifests = {name: Manifest.load(Path(repository)) for name, repository in given.items()}
    tasks = {name: manifest.task for name, manifest in manifests.items()}
    if len(set(tasks.values())) > 1:
        raise ConfigError(f"stages must be of one task: {', '.join(f'{n} is of {t}' for n, t in tasks.items())}")
    task = next(iter(tasks.values()))
    if task == "embedding":
        raise ConfigError("embeddings say nothing of how sure a stage is, so they cannot be stages of a cascade")
    if one := next((name for name, manifest in manifests.items() if _label_count(manifest) == 1), None):
        raise ConfigError(
            f"stage {one} has one label, a score, which says nothing of how sure it is: a cascade needs two or more"
        )
    for name, manifest in manifests.items():
        check_judged(f"stage {name}", manifest)
    first = next(iter(manifests.values()))
    labels = names(args.labels) or first.labels or tuple(map(str, range(_label_count(first))))
    if not labels and first.outputs and first.outputs[0].dims:
        raise ConfigError("the stages do not say how many labels they have: name them with --labels")
    if len(set(labels)) != len(labels):
        raise ConfigError(f"the label {max(labels, key=labels.count)!r} is named twice: choose others with --labels")
    for name, manifest in manifests.items():
        if _label_count(manifest) not in (len(labels), -1):
            raise ConfigError(f"stage {name} has {_label_count(manifest)} labels, and the cascade {len(labels)}")
    orders = {
        name: _order(manifest.labels, labels, f"stage {name}: its labels")
        for name, manifest in manifests.items()
        if manifest.labels and not args.labels and manifest.labels != labels
    }
    orders |= {
        name: _order(names(text), labels, "--order") for name, text in (_pair(text, "--order") for text in args.order)
    }
    if unknown := set(orders) - set(given):
        raise ConfigError(f"--order names {min(unknown)!r}, which is no stage: {', '.join(given)}")
    groups, vocabularies = _groups(given, manifests)
    folder = args.out.parent
    stages = [
        Stage(
            name=name,
            repository=os.path.relpath(repository, folder),
            manifest_sha256=repository_hash(Path(repository)),
            tokenizer_group=groups[name],
            label_order=orders.get(name, ()),
            importance=Importance() if any(o.name == "importance" for o in manifests[name].outputs) else None,
            memory_mb=max((r.memory_mb for r in manifests[name].runtimes if r.memory_mb is not None), default=None),
        )
        for name, repository in given.items()
    ]
    made = CascadeManifest(
        name=args.name,
        task=task,
        labels=labels,
        stages=tuple(stages),
        vocabularies=tuple(VocabularyFile.of(v) for v in vocabularies),
    )
    made.save(args.out)
    if len(set(groups.values())) > 1:
        unread = {name: why for name in given if (why := _no_text(Path(given[name]), manifests[name]))}
        print(
            "arlo: the stages have different vocabularies: clients send text, which is made into tokens for each"
            if not unread
            else "arlo: the stages have different vocabularies, so text is needed, and the gateway makes no tokens for "
            + "; ".join(f"{name}: {why}" for name, why in unread.items())
            + ". The cascade can be recorded, searched and simulated, not served",
            file=sys.stderr,
        )
    if args.json:
        print_json(dataclasses.asdict(made))
    else:
        print(f"written to {args.out}: {' -> '.join(given)}, {len(labels)} labels")
        if not any(stage.importance for stage in stages[:-1]):
            print("no stage has the output importance, so texts are not pruned between stages")
        print(f"next: arlo cascade record {args.out} --data TEXTS.jsonl")
    return 0


def _pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise ConfigError(f"{option} must be NAME=VALUE, not {text!r}")
    return name, value


def _label_count(manifest: Manifest) -> int:
    """Labels of the first output; -1: not fixed."""
    return int(manifest.outputs[0].dims[-1]) if manifest.outputs and manifest.outputs[0].dims else -1


def _order(given: tuple[str, ...], labels: tuple[str, ...], what: str) -> tuple[int, ...]:
    if sorted(given) != sorted(labels):
        raise ConfigError(f"{what} must name each label once: {', '.join(labels)}")
    return tuple(labels.index(name) for name in given)


def _groups(given: dict[str, str], manifests: dict[str, Manifest]) -> tuple[dict[str, int], list[Any]]:
    """Number of each stage's vocabulary, and what each says of words. Stages without a tokenizer are a group apart."""
    from arlo.cascade.prune import vocabulary_of

    found: list[tuple[str, Any]] = []
    groups = {}
    for name, repository in given.items():
        tokenizer = manifests[name].tokenizer
        path = Path(repository) / tokenizer if tokenizer else None
        vocabulary = json.loads(path.read_bytes()) if path is not None and path.is_file() else None
        key = json.dumps(vocabulary["model"].get("vocab") if vocabulary else name, sort_keys=True)
        known = [k for k, _ in found]
        if key not in known:
            found.append((key, vocabulary_of(vocabulary)))
            known.append(key)
        groups[name] = known.index(key)
    return groups, [vocabulary for _, vocabulary in found]


def _no_text(repository: Path, manifest: Manifest) -> str:
    """Why the gateway makes no tokens of text for a stage; empty: it does."""
    from arlo._core import Tokenizer
    from arlo.catalog.tokenizer import read_tokenizer

    raw = read_tokenizer(repository, manifest)
    if not raw:
        return "it was compiled without a tokenizer"
    try:
        Tokenizer(raw.decode())
    except ValueError as error:
        return str(error)
    return ""
