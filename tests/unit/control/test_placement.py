"""Configuration + manifest -> plan -> placement -> Deployment."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from arlo import config
from arlo.catalog.manifest import Manifest
from arlo.control.mode import mode_of
from arlo.control.reconcile.placement import deployment_message, plan_from_config, same_content
from arlo.errors import ConfigError
from arlo.planning.allocation.curves import capacity
from tests.fakes.placements import MANIFEST, configured, runtime


def test_plan_is_shortest_first_with_dynamic_last() -> None:
    plan = plan_from_config(configured("allocation = {512 = 1, 64 = 2, 128 = 0}\ndynamic = 1"), MANIFEST)
    assert list(plan.items()) == [("m_64", 2), ("m_512", 1), ("m_dyn512", 1)]


def test_plan_refuses_lengths_that_were_not_compiled() -> None:
    with pytest.raises(ConfigError, match=r"max_length 96, but /srv/r has static runtimes for: 64, 128, 512"):
        plan_from_config(configured("allocation = {96 = 1}"), MANIFEST)


def test_plan_refuses_a_dynamic_runtime_that_is_not_there() -> None:
    static = Manifest(
        **{**{f: getattr(MANIFEST, f) for f in MANIFEST.__slots__}, "runtimes": MANIFEST.runtimes[:3]},
    )
    with pytest.raises(ConfigError, match="has no dynamic"):
        plan_from_config(configured("dynamic = 1"), static)


def test_capacity_is_the_floor_of_slo_over_latency() -> None:
    assert capacity(runtime(64, 1150), 150) == 130
    assert capacity(runtime(512, 150_000), 150) == 1
    assert capacity(runtime(512, 150_001), 150) == 0
    assert capacity(runtime(512, 6000, dynamic=True), 150) == 25, "at max_length, not at the shortest point"


def test_what_answers_are_made_by_is_the_gateways() -> None:
    manifest = dataclasses.replace(
        MANIFEST,
        prompts={"query": "query: ", "document": ""},
        default_prompt="query",
        dimensions=64,
        label_activation="sigmoid",
        score_activation="identity",
    )
    message = deployment_message(
        mode_of(configured("allocation = {64 = 1}"), manifest), [("w0", "m_64")], {"w0": "h:1"}
    )
    model = message.model
    assert {prompt.name: prompt.text for prompt in model.prompts} == manifest.prompts
    assert (model.default_prompt, model.dimensions) == ("query", 64)
    assert (model.label_activation, model.score_activation) == ("sigmoid", "identity")


@pytest.mark.parametrize(("asked", "found"), [("query", "query"), ("", "")])
def test_the_configuration_chooses_another_default_prompt(asked: str, found: str) -> None:
    loaded = configured("allocation = {64 = 1}")
    loaded = dataclasses.replace(loaded, model=dataclasses.replace(loaded.model, default_prompt=asked))
    manifest = dataclasses.replace(MANIFEST, prompts={"query": "q: ", "document": ""}, default_prompt="document")
    message = deployment_message(mode_of(loaded, manifest), [("w0", "m_64")], {"w0": "h:1"})
    assert message.model.default_prompt == found
    unknown = dataclasses.replace(manifest, prompts={"document": ""})
    if asked:
        with pytest.raises(ConfigError, match="default_prompt is 'query', and the prompts of m are: document"):
            deployment_message(mode_of(loaded, unknown), [("w0", "m_64")], {"w0": "h:1"})


def test_deployment_message() -> None:
    loaded = configured("allocation = {64 = 1, 512 = 1}", "[dispatch]\ninflight_limit = 3")
    placed = [("w0", "m_64"), ("w1", "m_512")]
    message = deployment_message(mode_of(loaded, MANIFEST), placed, {"w0": "h:1", "w1": "h:2"}, version=7)
    assert message.version == 7
    assert (message.model.name, message.model.slo_ms, message.model.default_timeout_ms) == ("m", 150, 1500)
    assert message.model.vocabulary == 30_522
    assert [(t.name, t.role, t.pad_value, t.optional) for t in message.model.inputs] == [
        ("input_ids", 1, 0, False),
        ("attention_mask", 2, 0, True),
        ("token_type_ids", 3, 1, True),
    ]
    assert [(o.name, o.token_level, list(o.dims)) for o in message.model.outputs] == [("embedding", False, [384])]
    # 128 and the dynamic one have no instance, so they are no levels.
    assert [(r.name, r.max_length, r.capacity) for r in message.runtimes] == [("m_64", 64, 130), ("m_512", 512, 28)]
    assert [(p.length, p.latency_us) for p in message.runtimes[0].latency] == [(64, 1150)]
    # But for those that are asked for: a request that only the longest one fits waits while it is moved.
    moving = deployment_message(mode_of(loaded, MANIFEST), placed[:1], {"w0": "h:1"}, always={"m_512"})
    assert [r.name for r in moving.runtimes] == ["m_64", "m_512"]
    assert [i.id for i in moving.instances] == ["w0.m_64"]
    assert [(i.id, i.worker, i.endpoint, i.runtime, i.inflight_limit) for i in message.instances] == [
        ("w0.m_64", "w0", "h:1", "m_64", 3),
        ("w1.m_512", "w1", "h:2", "m_512", 3),
    ]


def test_capacity_in_the_message_is_never_zero() -> None:
    loaded = config.parse(
        '[model]\nrepository = "r"\nslo_ms = 1\nname = "other"\n[deployment]\nallocation = {512 = 1}', base=Path("/srv")
    )
    message = deployment_message(mode_of(loaded, MANIFEST), [("w0", "m_512")], {"w0": "h:1"})
    assert message.runtimes[0].capacity == 1
    assert message.model.name == "other"


def test_same_content_looks_past_the_version_only() -> None:
    mode = mode_of(configured("allocation = {64 = 1}"), MANIFEST)
    first = deployment_message(mode, [("w0", "m_64")], {"w0": "h:1"}, version=1)
    assert same_content(first, deployment_message(mode, [("w0", "m_64")], {"w0": "h:1"}, version=2))
    assert not same_content(first, deployment_message(mode, [("w0", "m_64")], {"w0": "h:2"}, version=1))
    assert first.version == 1
