"""Repositories that fit together as the stages of a cascade."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.catalog.manifest import Manifest
from arlo.cli.fit.common import folder_of
from arlo.cli.text import words
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.manifest import CascadeManifest

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The cascade that the command line names."""

    out: Path  # its cascade.json
    repositories: dict[str, Path]  # by stage, from the cheapest to the last
    name: str = "cascade"
    labels: tuple[str, ...] = ()  # in the order of the first stage's logits; none: its own
    orders: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # labels of a stage's logits
    before: CascadeManifest | None = None  # the present contents of `out`
    again: bool = False  # a cascade.json is named, not its stages


def wanted_of(args: argparse.Namespace) -> Wanted:
    """A cascade.json to fit again, or [NAME=]REPOSITORY for each stage."""
    from arlo.cascade.manifest import FILE_NAME, CascadeManifest

    given, orders = args.labels, {name: words(text) for name, text in map(_order_of, args.order)}
    first = Path(args.models[0])
    if len(args.models) == 1 and (first.is_file() or (first / FILE_NAME).is_file()):
        out = args.out or (first / FILE_NAME if first.is_dir() else first)
        found = CascadeManifest.load(first, check_repositories=False)
        kept = {s.name: tuple(found.labels[i] for i in s.label_order) for s in found.stages if s.label_order}
        return Wanted(
            out=out,
            repositories={stage.name: folder_of(first) / stage.repository for stage in found.stages},
            name=args.name or found.name,
            labels=given or found.labels,
            orders=orders or kept,
            before=found,
            again=True,
        )
    pairs = [_stage(text) for text in args.models]
    if len(dict(pairs)) < len(pairs):
        raise ConfigError("two stages have one name: give NAME=REPOSITORY for each")
    out = args.out or Path(FILE_NAME)
    before = CascadeManifest.load(out, check_repositories=False) if out.is_file() else None
    return Wanted(
        out=out,
        repositories=dict(pairs),
        name=args.name or (before.name if before else "cascade"),
        labels=given,
        orders=orders,
        before=before,
    )


def describe(wanted: Wanted) -> CascadeManifest:
    """The stages without calibrators and points. ConfigError if they do not fit together."""
    from arlo.cascade.manifest import CascadeManifest, Importance, Stage, repository_hash

    manifests = {name: Manifest.load(path) for name, path in wanted.repositories.items()}
    _check(wanted, manifests)
    labels = _labels(wanted, manifests)
    orders = {name: _order(wanted, name, manifest.labels, labels) for name, manifest in manifests.items()}
    groups, vocabularies = _groups(wanted.repositories, manifests)
    hashes = {name: repository_hash(path) for name, path in wanted.repositories.items()}
    before = {stage.manifest_sha256: stage for stage in wanted.before.stages} if wanted.before else {}
    stages = [
        Stage(
            name=name,
            repository=os.path.relpath(path, wanted.out.parent),
            manifest_sha256=hashes[name],
            tokenizer_group=groups[name],
            label_order=orders[name],
            importance=Importance() if any(o.name == "importance" for o in manifests[name].outputs) else None,
            memory_mb=max((r.memory_mb for r in manifests[name].runtimes if r.memory_mb is not None), default=None),
            energy_mj=before[hashes[name]].energy_mj if hashes[name] in before else (),
            energy_source=before[hashes[name]].energy_source if hashes[name] in before else "",
        )
        for name, path in wanted.repositories.items()
    ]
    if len(set(groups.values())) > 1 and not before:
        _warn_of_text(wanted.repositories, manifests)
    return CascadeManifest(
        name=wanted.name,
        task=next(iter(manifests.values())).task,
        labels=labels,
        stages=tuple(stages),
        vocabularies=tuple(vocabularies),
    )


def _check(wanted: Wanted, manifests: dict[str, Manifest]) -> None:
    from arlo.cascade.manifest import check_judged

    for name in (wanted.name, *manifests):
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a cascade or stage cannot be called {name!r}: letters, digits, '.', '_' and '-' are for names"
            )
    if unknown := set(wanted.orders) - set(manifests):
        raise ConfigError(f"--order names {min(unknown)!r}, which is no stage: {', '.join(manifests)}")
    tasks = {name: manifest.task for name, manifest in manifests.items()}
    if len(set(tasks.values())) > 1:
        raise ConfigError(f"stages must be of one task: {', '.join(f'{n} is of {t}' for n, t in tasks.items())}")
    for name, manifest in manifests.items():
        if manifest.task == "embedding":
            raise ConfigError("embeddings say nothing of how sure a stage is, so they cannot be stages of a cascade")
        if _label_count(manifest) == 1:
            raise ConfigError(
                f"stage {name} has one label, a score, which says nothing of how sure it is: two or more are needed"
            )
        check_judged(f"stage {name}", manifest)


def _labels(wanted: Wanted, manifests: dict[str, Manifest]) -> tuple[str, ...]:
    first = next(iter(manifests.values()))
    labels = wanted.labels or first.labels or tuple(map(str, range(_label_count(first))))
    if not labels:
        raise ConfigError("the stages do not say how many labels they have: name them with --labels")
    if len(set(labels)) != len(labels):
        raise ConfigError(f"the label {max(labels, key=labels.count)!r} is named twice: choose others with --labels")
    for name, manifest in manifests.items():
        if _label_count(manifest) not in (len(labels), -1):
            raise ConfigError(f"stage {name} has {_label_count(manifest)} labels, and the cascade {len(labels)}")
    return labels


def _order(wanted: Wanted, name: str, own: tuple[str, ...], labels: tuple[str, ...]) -> tuple[int, ...]:
    """The place of each of a stage's labels among the cascade's; empty: the same order."""
    given, what = wanted.orders.get(name), "--order"
    if given is None:
        known = sorted(own) == sorted(labels)
        if own == labels or (wanted.labels and not known) or not own:
            return ()
        given, what = own, f"stage {name}: its labels"
    if sorted(given) != sorted(labels):
        raise ConfigError(f"{what} must name each label once: {', '.join(labels)}")
    return tuple(labels.index(each) for each in given)


def _stage(text: str) -> tuple[str, Path]:
    name, sign, value = text.partition("=")
    return (name, Path(value)) if sign else (Path(text).resolve().name, Path(text))


def _order_of(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise ConfigError(f"--order must be STAGE=NAME,..., not {text!r}")
    return name, value


def _label_count(manifest: Manifest) -> int:
    """Labels of the first output; -1: not fixed."""
    return int(manifest.outputs[0].dims[-1]) if manifest.outputs and manifest.outputs[0].dims else -1


def _groups(given: dict[str, Path], manifests: dict[str, Manifest]) -> tuple[dict[str, int], list[Any]]:
    """The number of each stage's vocabulary, and each one's words. A stage without a tokenizer is a group alone."""
    from arlo.cascade.prune import vocabulary_of

    found: dict[str, Any] = {}
    groups = {}
    for name, repository in given.items():
        tokenizer = manifests[name].tokenizer
        path = repository / tokenizer if tokenizer else None
        vocabulary = json.loads(path.read_bytes()) if path is not None and path.is_file() else None
        key = json.dumps(vocabulary["model"].get("vocab") if vocabulary else name, sort_keys=True)
        if key not in found:
            found[key] = vocabulary_of(vocabulary)
        groups[name] = list(found).index(key)
    return groups, list(found.values())


def _warn_of_text(given: dict[str, Path], manifests: dict[str, Manifest]) -> None:
    """Warn that stages of different vocabularies need text, which the gateway tokenises for each."""
    unread = {name: why for name in given if (why := _no_text(given[name], manifests[name]))}
    text = "the stages have different vocabularies: clients send text, which is made into tokens for each"
    if unread:
        text = (
            "the stages have different vocabularies, so text is needed, and the gateway makes no tokens for "
            + "; ".join(f"{name}: {why}" for name, why in unread.items())
            + ". The cascade can be fitted and simulated, not served"
        )
    print(f"arlo: {text}", file=sys.stderr)


def _no_text(repository: Path, manifest: Manifest) -> str:
    """Why the gateway cannot tokenise text for a stage; empty: it can."""
    from arlo._core import Tokenizer
    from arlo.catalog.files import read_tokenizer

    raw = read_tokenizer(repository, manifest)
    if not raw:
        return "it was compiled without a tokenizer"
    try:
        Tokenizer(raw.decode())
    except ValueError as error:
        return str(error)
    return ""
