"""[pipeline] in serve.toml, and a flow file as the gateway is told of it: what is wrong is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arlo import proto
from arlo.catalog.manifest import Manifest
from arlo.config import Config, load
from arlo.config.stages import flow_of
from arlo.control.reconcile.pipeline import fill_pipeline
from arlo.errors import ConfigError
from arlo.workers.emulated.repository import write_emulated_repository

FLOW = """\
[flow]
name = "parts"
slo_ms = 100
on_drop = "partial"
[[flow.stage]]
name = "first"
variants = [{repository = "small", accuracy = 0.8}, {repository = "large", accuracy = 0.9}]
[[flow.stage]]
name = "then"
variants = [{repository = "last", accuracy = 0.9}]
[[flow.edge]]
from = "first"
to = "then"
hop_ms = 1
expand = {kind = "chunks", factor = 2, window = 32}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three repositories and a flow file."""
    flow_of.cache_clear()
    for name in ("small", "large", "last"):
        write_emulated_repository(tmp_path / name, model=name, max_lengths=(64,), latency_ms=(2,))
    (tmp_path / "flow.toml").write_text(FLOW)
    return tmp_path


def served(folder: Path, more: str = "", workers: str = "[workers]\ncount = 2\n") -> Config:
    (folder / "serve.toml").write_text(f'[pipeline]\nflow = "flow.toml"\n{more}\n{workers}')
    return load(folder / "serve.toml")


def filled(folder: Path, more: str = "") -> Any:
    config = served(folder, more)
    assert config.pipeline is not None
    message = proto.message("Pipeline")()
    fill_pipeline(message, config.pipeline, tuple(Manifest.load(model.repository) for model in config.models))
    return message


def test_the_variants_are_the_models(folder: Path) -> None:
    config = served(folder, "workers = [1, 2, 3]", "")
    assert [(m.name, m.workers, m.slo_ms, m.default_timeout_ms) for m in config.models] == [
        ("parts.first.small", 1, 100, 1000),
        ("parts.first.large", 2, 100, 1000),
        ("parts.then.last", 3, 100, 1000),
    ]


def test_what_the_gateway_is_told(folder: Path) -> None:
    told = filled(folder, 'window = 64\npool = "mean"\ntenants = {search = 3, mail = 0.5}')
    assert [(tenant.name, tenant.share) for tenant in told.tenants] == [("search", 3), ("mail", 0.5)]
    assert told.audit == 0.001
    assert (told.name, told.slo_ms, told.router, told.drop, told.partial) == ("parts", 100, "price", "slack", True)
    assert (told.chunks.window, told.chunks.stride, told.pool, told.max_children) == (64, 62, True, 256)
    assert [[v.model for v in stage.variants] for stage in told.stages] == [
        ["parts.first.small", "parts.first.large"],
        ["parts.then.last"],
    ]
    assert [v.least_us for stage in told.stages for v in stage.variants] == [2000] * 3
    (edge,) = told.edges
    assert (getattr(edge, "from"), edge.to, edge.hop_us, list(edge.factor)) == (0, 1, 1000, [2.0, 2.0])
    assert (edge.chunks.window, edge.chunks.stride) == (32, 30)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("workers = [1]", r"serve.toml:3: pipeline.workers are 1 numbers for 3 variants: one for each"),
        ("workers = [1, 1, 1]", r"pipeline.workers is 1 \+ 1 \+ 1 by variant, but \[workers\] has 2 worker"),
        ("window = 2", r"pipeline.window must be 0, or above 2, not 2"),
        ("window = 8\nstride = 7", r"pipeline.stride must be 1 to window - 2 \(6\), not 7"),
        ("default_timeout_ms = 99", r"pipeline.default_timeout_ms must be at least flow.slo_ms \(100\)"),
        ("tenants = {mail = 0}", r"pipeline.tenants need a name and a share above 0, not 'mail' = 0"),
        ("audit = 2", r"pipeline.audit must be .*1"),
        ('pool = "max"', r'pipeline.pool must be "list" or "mean"'),
        ("flaw = 1", r"pipeline.flaw is not a key of \[pipeline\]: did you mean 'flow'"),
        ('[model]\nslo_ms = 1\nrepository = "x"', r"model and \[pipeline\] do not go together"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, more: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        served(folder, more)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("hop_ms = 1", 'when = {label_in = ["x"]}', "'first' has no label 'x'"),
        (
            'hop_ms = 1\nexpand = {kind = "chunks", factor = 2, window = 32}',
            'answer = {ensemble = "last"}\nwhen = {score = "margin", below = "price"}',
            "by its margin is counted: flow.records",
        ),
        ('"small", accuracy', '"none", accuracy', "none"),
    ],
)
def test_what_is_not_served_is_named(folder: Path, old: str, new: str, says: str) -> None:
    (folder / "flow.toml").write_text(FLOW.replace(old, new))
    with pytest.raises(ConfigError, match=says):
        filled(folder)


AGAIN = """\
answer = {ensemble = "weighted", weights = [0.8, 0.9]}
expand = {kind = "prune", alpha = 0.5, min_words = 3}
when = {score = "calibrated_max", below = "price", share = 0.4}
"""


def test_second_answers(folder: Path) -> None:
    """Temperatures, mixes, gains by what the accuracies say, words that are left out; accuracies of the ways."""
    text = FLOW.replace('hop_ms = 1\nexpand = {kind = "chunks", factor = 2, window = 32}\n', AGAIN)
    (folder / "flow.toml").write_text(text.replace("accuracy = 0.8}", "accuracy = 0.8, temperature = 1.5}"))
    told = filled(folder)
    assert [variant.calibrator.t for variant in told.stages[0].variants] == [1.5, 0.0]
    (edge,) = told.edges
    assert (edge.guard.rule, edge.guard.score) == ("price", "max")
    assert (edge.falls_back, list(edge.weights)) == (True, [0.8, 0.9])
    assert [(list(g.score), [round(x, 9) for x in g.gain]) for g in edge.guard.gain] == [([0.0, 1.0], [0.9, -0.1])] * 2
    prune = edge.prune
    assert (prune.output, prune.alpha, prune.min_words, prune.to_level) == ("importance", 0.5, 3, True)
    assert list(prune.levels) == [64]
    assert list(told.accuracy) == [0.8, 0.9, 0.9, 0.9], "small, large, and behind each the better one of both"


def test_accuracies_of_ways_are_told(folder: Path) -> None:
    assert list(filled(folder).accuracy) == pytest.approx([0.8, 0.9, 0.72, 0.81])


BY_TOKENS = """\
[flow]
name = "body"
slo_ms = 100
[[flow.stage]]
name = "tokens"
variants = [
    {repository = "large", tokens = 0, accuracy = 0.9, max_lengths = [64], latency = [[1, 8]]},
    {repository = "small", tokens = -4, accuracy = 0.88, max_lengths = [64], latency = [[1, 6]]},
    {repository = "last", tokens = -8, accuracy = 0.8, max_lengths = [64], latency = [[1, 4]]},
]
"""


def test_variants_by_tokens(folder: Path) -> None:
    """What the gateway is told, with the price at which the first exchange pays: 2 points for 2 ms."""
    (folder / "flow.toml").write_text(BY_TOKENS)
    told = filled(folder)
    assert [variant.tokens for variant in told.stages[0].variants] == [0, -4, -8]
    assert told.plan.price == pytest.approx(0.02 / 0.002)
    assert told.stages[0].tokens.rule == "price"
    assert filled(folder, 'tokens = "printed"').stages[0].tokens.rule == "printed"
    with pytest.raises(ConfigError, match="leave `workers` out"):
        served(folder, 'tokens = "printed"\nworkers = [1, 1, 1]')


def test_what_energy_is_worth(folder: Path) -> None:
    """A worker-second of each variant. Of token counts the first exchange pays at less: 2 points, 2 ms of .5."""
    (folder / "flow.toml").write_text(FLOW.replace("slo_ms", "watts = 50\njoule = 0.1\nslo_ms", 1))
    assert [v.energy for stage in filled(folder).stages for v in stage.variants] == [5.0] * 3
    flow_of.cache_clear()
    (folder / "flow.toml").write_text(BY_TOKENS.replace("slo_ms", "watts = 50\njoule = 0.01\nslo_ms", 1))
    told = filled(folder)
    assert [v.energy for v in told.stages[0].variants] == [0.5] * 3
    assert told.plan.price == pytest.approx(0.02 / 0.002 - 0.5)


def test_one_token_count(folder: Path) -> None:
    (folder / "flow.toml").write_text(BY_TOKENS)
    (one,) = filled(folder, 'tokens = "fixed:-4"').stages[0].variants
    assert (one.model, one.tokens) == ("body.tokens.small", -4)
    with pytest.raises(ConfigError, match="of a flow of one stage: 0, -4, -8"):
        served(folder, 'tokens = "fixed:-5"')
    with pytest.raises(ConfigError, match='must be "price", "printed" or "fixed:N"'):
        served(folder, 'tokens = "best"')
    (folder / "flow.toml").write_text(FLOW)
    flow_of.cache_clear()
    assert not filled(folder).stages[0].variants[0].HasField("tokens")
    with pytest.raises(ConfigError, match="of a flow of one stage"):
        served(folder, 'tokens = "fixed:0"')


def test_how_rows_become_others(folder: Path) -> None:
    """What an edge takes from where, how many children it makes at most, and whose answers are told of."""
    edge = 'kind = "tensor", output = "boxes", factor = 2, max = 9, inputs = {text = "words"}'
    text = FLOW.replace('kind = "chunks", factor = 2, window = 32', edge)
    (folder / "flow.toml").write_text(text.replace('name = "first"', 'name = "first"\ntold = true'))
    told = filled(folder)
    assert [stage.told for stage in told.stages] == [True, False]
    (found,) = told.edges
    assert (found.expand.kind, found.expand.output, found.expand.max) == ("tensor", "boxes", 9)
    assert [(each.input, getattr(each, "from")) for each in found.expand.inputs] == [("text", "words")]

    flow_of.cache_clear()
    (folder / "flow.toml").write_text(FLOW.replace('kind = "chunks", factor = 2, window = 32', "inputs = {text = 1}"))
    with pytest.raises(ConfigError, match="must be the name of an output or input"):
        filled(folder)
