"""[cascade] in serve.toml, and cascade.json as the gateway is told of it: what is wrong is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arlo import proto
from arlo.cascade.manifest import CascadeManifest, Point, Stage, repository_hash
from arlo.cascade.prune import Vocabulary
from arlo.cascade.spec import Calibrator, Ensemble, Prune, Rule, hard
from arlo.catalog.manifest import Manifest
from arlo.config import Config, load
from arlo.config.stages import cascade_manifest, cascade_name, stage_name
from arlo.control.reconcile.cascade import fill_cascade
from arlo.errors import ConfigError
from arlo.workers.emulated.repository import write_emulated_repository

LABELS = ("a", "b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two stages, a cascade.json with two points."""
    cascade_manifest.cache_clear()
    stages = []
    for name, t in (("small", 1.5), ("large", 1.0)):
        write_emulated_repository(tmp_path / name, model=name, max_lengths=(64,), latency_ms=(1,))
        sha256 = repository_hash(tmp_path / name)
        stages.append(Stage(name=name, repository=name, manifest_sha256=sha256, calibrator=Calibrator(t=t)))

    def point(name: str, **fields: Any) -> Point:
        known = {"search": "exact", "objective": "mean", "accuracy": None, "agreement": 1.0, "mean_ms": 1.0}
        known |= {"reach": (1.0, 0.5), "rules": ((hard(0.8),), (hard(0.5),))}
        return Point(name=name, **{**known, **fields})

    CascadeManifest(
        name="kinds",
        task="sequence-classification",
        labels=LABELS,
        stages=tuple(stages),
        vocabularies=(Vocabulary(word_start="Bw==", special=(2, 1), keep=(5,)),),
        points=(
            point("ap", prune=Prune(alpha=0.7, min_words=3)),
            point(
                "mixed", ensemble=Ensemble(kind="raw", weights=(0.4, 0.6)), rules=((Rule(kind="soft", c=0.5, k=10.0),),)
            ),
        ),
        default_point="ap",
    ).save(tmp_path)
    return tmp_path


def served(folder: Path, more: str = "", workers: str = "[workers]\ncount = 2\n", head: str = "") -> Config:
    """The configuration of serve.toml with more lines in [cascade]."""
    text = head or f'[cascade]\nmanifest = "cascade.json"\nslo_ms = 100\n{more}\n'
    (folder / "serve.toml").write_text(text + workers)
    return load(folder / "serve.toml")


def test_the_stages_are_the_models(folder: Path) -> None:
    config = served(folder, "workers = [1, 3]", "")
    assert config.cascade is not None
    assert cascade_name(config.cascade) == "kinds"
    assert [(m.name, m.workers, m.slo_ms, m.default_timeout_ms) for m in config.models] == [
        ("kinds.small", 1, 100, 1000),
        ("kinds.large", 3, 100, 1000),
    ]
    assert [model.repository for model in config.models] == [(folder / n).resolve() for n in ("small", "large")]
    assert config.worker_count == 4
    named = served(folder, 'name = "topics"\ndefault_timeout_ms = 250')
    assert named.cascade is not None
    assert stage_name(named.cascade, "small") == named.model.name == "topics.small"
    assert {m.default_timeout_ms for m in named.models} == {250}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('point = "eo"', r"serve.toml:4: cascade.point is unknown: .* 'eo'; it has: ap, mixed"),
        ("workers = [1]", r"serve.toml:4: cascade.workers are 1 numbers for 2 stages: one for each"),
        ("workers = [1, 0]", r"cascade.workers are 1 to 1000 for each stage, not \[1, 0\]"),
        ("workers = [2, 2]", r"cascade.workers is 2 \+ 2 by stage, but \[workers\] has 2 worker"),
        ("default_timeout_ms = 99", r"cascade.default_timeout_ms must be at least slo_ms \(100\), not 99"),
        ('on_deadline = "wait"', r'cascade.on_deadline must be "answer" or "expire"'),
        ('on_failure = "wait"', r'cascade.on_failure must be "answer" or "error"'),
        ('price = "on"', r'cascade.price must be "off" or "auto"'),
        ("prise = 1", r"cascade.prise is not a key of \[cascade\]: did you mean 'price'"),
        (
            '[model]\nslo_ms = 1\nrepository = "x"',
            r"model and \[cascade\] do not go together: the stages are the models",
        ),
        ("[deployment]\nallocation = {64 = 1}", r"deployment.allocation goes with one model"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, more: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        served(folder, more)


@pytest.mark.parametrize(
    ("head", "workers", "says"),
    [
        ("[cascade]\nslo_ms = 1\n", "", "cascade.manifest is missing"),
        ('[cascade]\nmanifest = "cascade.json"\n', "", "cascade.slo_ms is missing"),
        ('[cascade]\nmanifest = "none.json"\nslo_ms = 1\n', "", r"none.json cannot be read .*arlo fit"),
        ("", "", r"workers.count is missing: how many workers hold the models"),
    ],
)
def test_what_is_missing_is_named(folder: Path, head: str, workers: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        served(folder, head=head, workers=workers)


def filled(folder: Path, more: str = "", change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> Any:
    """The arlo.v1.Cascade of a configuration, whose second repository is changed in between."""
    config = served(folder, more)
    assert config.cascade is not None
    small, large = (Manifest.load(folder / name) for name in ("small", "large"))
    message = proto.message("Cascade")()
    fill_cascade(message, config.cascade, (small, change(large)))
    return message


def test_what_the_gateway_is_told(folder: Path) -> None:
    told = filled(folder, 'price = "auto"\non_deadline = "expire"')
    assert (told.name, told.point, told.slo_ms, told.default_timeout_ms) == ("kinds", "ap", 100, 1000)
    assert (told.auto_price, told.expire, told.fail, told.seed, told.answer_margin_ms) == (True, True, False, 0, 2)
    assert (told.logits, told.end_logits, list(told.labels)) == ("logits", "", list(LABELS))
    assert [(stage.model, stage.calibrator.t, stage.weight) for stage in told.stages] == [
        ("kinds.small", 1.5, 1.0),
        ("kinds.large", 1.0, 1.0),
    ]
    (words,) = told.words
    assert (words.word_start, list(words.special), list(words.keep)) == (b"\x07", [1, 2], [5])
    ap, mixed = told.points
    assert (ap.name, ap.prune.alpha, ap.prune.min_words, ap.ensemble) == ("ap", 0.7, 3, "none")
    assert [price.rules[0].below[0].value for price in ap.prices] == [0.8, 0.5]
    assert (mixed.ensemble, mixed.prices[0].rules[0].rule, mixed.prices[0].rules[0].c) == ("raw", "soft", 0.5)
    other = filled(folder, 'point = "mixed"\non_failure = "error"')
    assert (other.point, other.fail) == ("mixed", True)
    assert [stage.weight for stage in other.stages] == [0.4, 0.6]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"task": "reranker"}, "stage 'large' is of task reranker, and the cascade of sequence-classification"),
        ({"labels": ("a", "c")}, "stage 'large' has other labels than the cascade"),
    ],
)
def test_stages_that_do_not_go_together(folder: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        filled(folder, change=lambda manifest: dataclasses.replace(manifest, **change))


def rewritten(folder: Path, **changes: Any) -> None:
    cascade_manifest.cache_clear()
    dataclasses.replace(CascadeManifest.load(folder), **changes).save(folder)


def test_stages_of_different_vocabularies(folder: Path) -> None:
    small, large = CascadeManifest.load(folder).stages
    rewritten(
        folder,
        stages=(small, dataclasses.replace(large, tokenizer_group=1)),
        vocabularies=(Vocabulary(), Vocabulary()),
    )
    with pytest.raises(ConfigError, match="stage 'small' has no tokenizer that makes its tokens"):
        filled(folder)


@pytest.mark.parametrize(
    ("task", "logits", "labels"),
    [
        ("question-answering", ("start_logits", "end_logits"), 0),
        ("token-classification", ("logits", ""), 0),
        ("reranker", ("logits", ""), 2),
    ],
)
def test_which_outputs_are_judged(folder: Path, task: str, logits: tuple[str, str], labels: int) -> None:
    rewritten(folder, task=task)
    told = filled(folder)
    assert (told.logits, told.end_logits, len(told.labels)) == (*logits, labels)
