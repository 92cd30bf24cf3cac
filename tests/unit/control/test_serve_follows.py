"""`arlo serve` follows the recommendation: what is chosen, what is refused, what the scheduler makes of it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from arlo import config
from arlo.catalog.logical import write_logical_model
from arlo.catalog.manifest import LatencyPoint, Manifest, Runtime
from arlo.cli.recommend import advice_line, load_manifest, recommended
from arlo.config import Config
from arlo.control.mode import mode_of
from arlo.control.reconcile import state
from arlo.control.reconcile.choice import choose
from arlo.control.reconcile.placement import deployment_message
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.errors import ConfigError
from arlo.planning.lengths.advice import advise, dynamic_runtime
from arlo.profiler.format import How, LatencyProfile, Point, RuntimeProfile, runtime_hash
from arlo.workers.emulated.repository import EmulatedRuntime, write_runtimes

LENGTHS = (16, 64)


def write(path: Path, *, static_us: int, dynamic_us: int, memory_mb: int = 0) -> Manifest:
    """Two static runtimes and a dynamic one, each taking its time for 16 tokens, four times that for 64."""
    static = [
        EmulatedRuntime(
            name=f"m_len{length}",
            max_length=length,
            max_batch=1,
            dynamic=False,
            latency=(LatencyPoint(length=length, batch=1, latency_us=static_us * length // 16),),
            memory_mb=memory_mb,
        )
        for length in LENGTHS
    ]
    points = tuple(LatencyPoint(length=at, batch=1, latency_us=dynamic_us * at // 16) for at in LENGTHS)
    dynamic = EmulatedRuntime(name="m_dynamic", max_length=64, max_batch=1, dynamic=True, latency=points)
    return write_runtimes(path, model="m", runtimes=[*static, dynamic])


def configured(path: Path, deployment: str = "", *, more: str = "") -> Config:
    text = f'[model]\nrepository = "{path}"\nslo_ms = 150\n[workers]\ncount = 3\n[deployment]\n{deployment}\n{more}'
    return config.parse(text, base=path)


@pytest.fixture
def dynamic_pays(tmp_path: Path) -> Manifest:
    return recommended(write(tmp_path, static_us=1000, dynamic_us=1000))


@pytest.fixture
def static_pays(tmp_path: Path) -> Manifest:
    return recommended(write(tmp_path, static_us=1000, dynamic_us=2500))


def test_the_recommendation_is_followed(dynamic_pays: Manifest, static_pays: Manifest, tmp_path: Path) -> None:
    assert dynamic_pays.recommendation is not None
    choice = choose(configured(tmp_path), dynamic_pays)
    assert choice.serve == "dynamic"
    assert choice.text.startswith("serving the dynamic runtime m_dynamic on every worker: over tweets, ")
    choice = choose(configured(tmp_path), static_pays)
    assert choice.serve == "static"
    assert choice.text.startswith("serving static runtimes for 16 and 64 tokens: over tweets, ")


@pytest.mark.parametrize(
    ("deployment", "serve"),
    [
        ('runtimes = "static"', "static"),
        ('runtimes = "dynamic"', "dynamic"),
        ('runtimes = "dynamic"\ndynamic = 2', "dynamic"),
        ("allocation = {16 = 1, 64 = 1}", "static"),
        ("allocation = {16 = 0}", "recommended"),
        ("dynamic = 1", "both"),
        ("allocation = {64 = 1}\ndynamic = 1", "both"),
    ],
)
def test_what_the_configuration_says_wins(
    dynamic_pays: Manifest, static_pays: Manifest, tmp_path: Path, deployment: str, serve: str
) -> None:
    for manifest in (dynamic_pays, static_pays):
        assert manifest.recommendation is not None
        expected = manifest.recommendation.serve if serve == "recommended" else serve
        assert choose(configured(tmp_path, deployment), manifest).serve == expected


def test_contradictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"deployment.runtimes is dynamic, but `allocation` asks for static runtimes"):
        configured(tmp_path, 'runtimes = "dynamic"\nallocation = {16 = 1}')
    with pytest.raises(ConfigError, match=r"deployment.runtimes is static, but `dynamic` asks for 1 instance"):
        configured(tmp_path, 'runtimes = "static"\ndynamic = 1')


def test_a_kind_that_is_not_there_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path, static_us=1000, dynamic_us=1000)
    only_static = dataclasses.replace(whole, runtimes=tuple(r for r in whole.runtimes if not r.dynamic))
    only_dynamic = dataclasses.replace(whole, runtimes=tuple(r for r in whole.runtimes if r.dynamic))
    with pytest.raises(ConfigError, match="has no dynamic runtime: compile one"):
        choose(configured(tmp_path, 'runtimes = "dynamic"'), only_static)
    with pytest.raises(ConfigError, match="has no static runtime: remove the key"):
        choose(configured(tmp_path, 'runtimes = "static"'), only_dynamic)
    assert choose(configured(tmp_path), only_static).why == "the repository has no dynamic one"
    assert choose(configured(tmp_path), only_dynamic).why == "the repository has no static one"


def test_a_bundle_is_one_runtime_to_all_that_plan(static_pays: Manifest, tmp_path: Path) -> None:
    settings = configured(tmp_path, 'runtimes = "bundle"')
    mode = mode_of(settings, static_pays)
    (bundle,) = mode.manifest.runtimes
    assert (bundle.name, bundle.dynamic, bundle.max_length) == ("m_bundle", True, 64)
    assert [part.name for part in bundle.parts] == ["m_len16", "m_len64"]
    assert bundle.files == {path: digest for part in bundle.parts for path, digest in part.files.items()}
    # In steps, as the rows are padded.
    assert [bundle.latency_ns(1, length) for length in (1, 16, 17, 40, 64)] == [10**6, 10**6, *[4 * 10**6] * 3]
    assert mode.choice.serve == "dynamic"
    assert mode.choice.text == (
        'serving static runtimes for 16 and 64 tokens, all on every worker: deployment.runtimes is "bundle"'
    )
    message = deployment_message(mode, [("w0", "m_bundle")], {"w0": "here:1"})
    assert [runtime.name for runtime in message.runtimes] == ["m_len16", "m_len64"]
    assert [(b.name, list(b.runtimes)) for b in message.bundles] == [("m_bundle", ["m_len16", "m_len64"])]
    assert [instance.runtime for instance in message.instances] == ["m_bundle"]
    scheduler = RuntimeScheduler(mode, *([None] * 2), Counter())  # type: ignore[arg-type]
    assert scheduler.longest == "m_bundle"


def test_a_bundle_costs_what_its_members_do_whatever_batches_they_take(tmp_path: Path) -> None:
    def runtime(length: int, *points: tuple[int, int]) -> EmulatedRuntime:
        latency = tuple(LatencyPoint(length=length, batch=rows, latency_us=us) for rows, us in points)
        return EmulatedRuntime(
            name=f"m_len{length}", max_length=length, max_batch=points[-1][0], dynamic=False, latency=latency
        )

    runtimes = [runtime(16, (1, 1000), (8, 2000)), runtime(64, (1, 4000)), runtime(128, (1, 9000), (2, 12_000))]
    manifest = write_runtimes(tmp_path, model="m", runtimes=runtimes)
    (bundle,) = choose(configured(tmp_path, 'runtimes = "bundle"'), manifest).manifest.runtimes
    for rows in (1, 2, 4, 8):
        for member in bundle.parts:
            assert bundle.latency_ns(rows, member.max_length) == member.latency_ns(rows)
            assert bundle.latency_ns(rows, member.max_length - 3) == member.latency_ns(rows)


def test_servers_with_the_plugin_are_taken_as_they_are(static_pays: Manifest, tmp_path: Path) -> None:
    """Whatever is recommended: what the logical model answers with is loaded there and stays."""
    write_logical_model(tmp_path, static_pays)
    dynamic_pays = recommended(write(tmp_path, static_us=1000, dynamic_us=1000))
    fixed = 'kind = "endpoints"\nendpoints = ["a:1", "b:1"]'
    for pays in (static_pays, dynamic_pays):
        pays.save(tmp_path)
        manifest = Manifest.load(tmp_path)
        (bundle,) = choose(endpoints(tmp_path, fixed), manifest).manifest.runtimes
        assert [part.name for part in bundle.parts] == ["m_len16", "m_len64"]
        assert "the plugin" in choose(endpoints(tmp_path, fixed), manifest).text
        explicit = endpoints(tmp_path, fixed, '[deployment]\nruntimes = "static"')
        assert choose(explicit, manifest).serve == "static"
    small = recommended(write(tmp_path, static_us=1000, dynamic_us=1000, memory_mb=600))
    small.save(tmp_path)
    assert "the plugin" not in choose(endpoints(tmp_path, fixed + "\nmemory_mb = 1000"), Manifest.load(tmp_path)).text
    assert "the plugin" in choose(endpoints(tmp_path, fixed + "\nmemory_mb = 1200"), Manifest.load(tmp_path)).text
    assert choose(configured(tmp_path), dynamic_pays).serve == "dynamic"  # workers of ours need not hold them


def endpoints(path: Path, workers: str, more: str = "") -> Config:
    text = f'[model]\nrepository = "{path}"\nslo_ms = 150\n[workers]\n{workers}\n{more}'
    return config.parse(text, base=path)


def test_a_bundle_needs_measured_static_runtimes(static_pays: Manifest, tmp_path: Path) -> None:
    settings = configured(tmp_path, 'runtimes = "bundle"')
    only_dynamic = tuple(runtime for runtime in static_pays.runtimes if runtime.dynamic)
    with pytest.raises(ConfigError, match=r'is "bundle", but .* has no static runtime'):
        choose(settings, dataclasses.replace(static_pays, runtimes=only_dynamic))
    unmeasured = tuple(dataclasses.replace(runtime, latency=()) for runtime in static_pays.runtimes)
    with pytest.raises(ConfigError, match="no latency of m_len16, m_len64 was measured"):
        choose(settings, dataclasses.replace(static_pays, runtimes=unmeasured))
    for other in ("allocation = {16 = 1}", "dynamic = 1"):
        with pytest.raises(ConfigError, match=r"deployment.runtimes is bundle, but"):
            configured(tmp_path, f'runtimes = "bundle"\n{other}')


def test_without_a_recommendation_static_runtimes_are_served_and_the_reason_is_said(tmp_path: Path) -> None:
    whole = write(tmp_path, static_us=1000, dynamic_us=1000)
    assert choose(configured(tmp_path), whole) == dataclasses.replace(
        choose(configured(tmp_path, 'runtimes = "static"'), whole),
        why="nothing is recommended: `arlo compile profile REPOSITORY --update` compares them",
    )


def test_a_runtime_that_nobody_measured_is_not_served(dynamic_pays: Manifest, tmp_path: Path) -> None:
    def without(*names: str) -> Manifest:
        runtimes = tuple(dataclasses.replace(r, latency=()) if r.name in names else r for r in dynamic_pays.runtimes)
        return dataclasses.replace(dynamic_pays, runtimes=runtimes)

    with pytest.raises(
        ConfigError, match=r"no latency of m_len16 was measured, .* run `arlo compile profile .* --update` on"
    ):
        choose(configured(tmp_path, 'runtimes = "static"'), without("m_len16"))
    with pytest.raises(ConfigError, match="no latency of m_dynamic was measured"):
        choose(configured(tmp_path), without("m_dynamic", "m_len64"))
    with pytest.raises(ConfigError, match="no latency of m_len64, m_dynamic was measured"):
        choose(configured(tmp_path, "dynamic = 1"), without("m_dynamic", "m_len64"))
    # One that is not served does not matter, and nothing is planned with it.
    kept = choose(configured(tmp_path), without("m_len16")).manifest
    assert [runtime.name for runtime in kept.runtimes] == ["m_len64", "m_dynamic"]
    kept = choose(configured(tmp_path, 'runtimes = "static"'), without("m_dynamic")).manifest
    assert [runtime.name for runtime in kept.runtimes] == ["m_len16", "m_len64"]


def scheduler(settings: Config, manifest: Manifest) -> RuntimeScheduler:
    none: Reconciler = None  # type: ignore[assignment]  # neither is asked for what is tested here
    return RuntimeScheduler(mode_of(settings, manifest), none, none, Counter())  # type: ignore[arg-type]


def test_every_worker_gets_the_dynamic_runtime(dynamic_pays: Manifest, tmp_path: Path) -> None:
    following = scheduler(configured(tmp_path), dynamic_pays)
    assert following.planner.planned == []
    assert following.longest == "m_dynamic"  # what auto-scaling gives a worker that it adds
    assert following._from_config() == {"m_dynamic": 3}
    told = scheduler(configured(tmp_path, 'runtimes = "static"'), dynamic_pays)
    assert set(told._from_config()) <= {"m_len16", "m_len64"}
    assert [runtime.name for runtime in told.planner.planned] == ["m_len16", "m_len64"]
    assert told.longest == "m_len64"


def test_dynamic_needs_no_reallocation(dynamic_pays: Manifest, tmp_path: Path) -> None:
    fixed = configured(tmp_path, 'runtimes = "dynamic"', more="[control]\nreallocate = false")
    assert scheduler(fixed, dynamic_pays)._from_config() == {"m_dynamic": 3}


def test_a_placement_of_the_other_kind_is_not_taken_up_again(dynamic_pays: Manifest, tmp_path: Path) -> None:
    following, told = configured(tmp_path), configured(tmp_path, 'runtimes = "static"')
    assert state.fingerprint(mode_of(following, dynamic_pays)) != state.fingerprint(mode_of(told, dynamic_pays))


def test_the_gateway_gets_the_time_of_every_length(dynamic_pays: Manifest, tmp_path: Path) -> None:
    """By these points its policies know the work of each request on a dynamic instance (dispatch_cost_test.cc)."""
    message = deployment_message(mode_of(configured(tmp_path), dynamic_pays), [("w0", "m_dynamic")], {"w0": "h:1"})
    assert [runtime.name for runtime in message.runtimes] == ["m_dynamic"]
    assert message.runtimes[0].dynamic
    assert [(p.length, p.batch, p.latency_us) for p in message.runtimes[0].latency] == [(16, 1, 1000), (64, 1, 4000)]


def test_new_latencies_give_a_new_recommendation(dynamic_pays: Manifest, tmp_path: Path) -> None:
    assert dynamic_pays.recommendation is not None
    slower = tuple(
        dataclasses.replace(
            runtime,
            latency=tuple(
                dataclasses.replace(point, latency_us=point.latency_us * (3 if runtime.dynamic else 1))
                for point in runtime.latency
            ),
        )
        for runtime in dynamic_pays.runtimes
    )
    after = recommended(dataclasses.replace(dynamic_pays, runtimes=slower)).recommendation
    assert after is not None
    assert (dynamic_pays.recommendation.serve, after.serve) == ("dynamic", "static")


def test_the_traffic_is_that_of_the_build(dynamic_pays: Manifest) -> None:
    asked = dataclasses.replace(dynamic_pays, options={"histogram": "fixed:16"})
    expected = advise(asked, {16: 1}, lengths="fixed:16")
    assert expected is not None
    assert recommended(asked).recommendation == expected
    gone = dataclasses.replace(dynamic_pays, options={"histogram": "/nowhere/lengths.json"})
    assert recommended(gone).recommendation == dynamic_pays.recommendation


def test_a_latency_profile_renews_the_recommendation(tmp_path: Path) -> None:
    whole = recommended(write(tmp_path / "r", static_us=1000, dynamic_us=1000))
    whole.save(tmp_path / "r")
    assert advice_line(whole).startswith("recommended here: the dynamic runtime; over tweets, ")

    def measured(runtime: Runtime) -> RuntimeProfile:
        points = []
        for at in runtime.latency:
            mean_us = at.latency_us * (5.0 if runtime.dynamic else 1.0)
            spread = {"p50_us": mean_us, "p98_us": mean_us, "half_width_us": 1.0, "samples": 9}
            points.append(Point(length=at.length, batch=1, mean_us=mean_us, **spread))  # type: ignore[arg-type]
        shape = {"max_length": runtime.max_length, "max_batch": runtime.max_batch, "dynamic": runtime.dynamic}
        return RuntimeProfile(name=runtime.name, hash=runtime_hash(runtime), points=tuple(points), **shape)  # type: ignore[arg-type]

    LatencyProfile(
        model="m",
        device="a GPU",
        versions={},
        date="2026-01-02T03:04:05+00:00",
        provenance="a test",
        how=How(confidence=0.95, precision=0.02, max_seconds=1.0, threads=1, outputs=("embedding",)),
        runtimes=tuple(measured(runtime) for runtime in whole.runtimes),
    ).save(tmp_path / "gpu.json")
    settings = config.parse(
        f'[model]\nrepository = "{tmp_path}/r"\nslo_ms = 150\nlatency_profile = "{tmp_path}/gpu.json"\n'
        "[workers]\ncount = 1",
        base=tmp_path,
    )
    there = load_manifest(settings).recommendation
    assert there is not None
    assert (there.serve, there.device) == ("static", "a GPU")


def test_what_is_missing_is_said_where_nothing_can_be_compared(tmp_path: Path) -> None:
    whole = write(tmp_path, static_us=1000, dynamic_us=1000)
    static = recommended(dataclasses.replace(whole, runtimes=tuple(r for r in whole.runtimes if not r.dynamic)))
    assert static.recommendation is None
    assert advice_line(static).startswith("no recommendation: there is no dynamic runtime to compare with")


def memory(folder: Path, deployment: str, memory_mb: int) -> Config:
    text = f'[model]\nrepository = "{folder}"\nslo_ms = 150\n[workers]\ncount = 3\nmemory_mb = {memory_mb}\n'
    return config.parse(f"{text}[deployment]\n{deployment}\n", base=folder)


def test_a_bundle_is_what_memory_holds(tmp_path: Path) -> None:
    runtimes = [
        EmulatedRuntime(
            name=f"m_len{length}",
            max_length=length,
            max_batch=1,
            dynamic=False,
            latency=(LatencyPoint(length=length, batch=1, latency_us=100 * length),),
            memory_mb=100,
        )
        for length in (16, 32, 64)
    ]
    manifest = write_runtimes(tmp_path, model="m", runtimes=runtimes)

    def held(settings: Config) -> tuple[list[str], str]:
        """What is held, and what people are told; before and after a manifest is made of it the same."""
        (bundle,) = choose(settings, manifest).manifest.runtimes
        text = choose(settings, manifest).text
        return [part.name for part in bundle.parts], text

    names, text = held(memory(tmp_path, 'runtimes = "bundle"', 299))
    assert names == ["m_len32", "m_len64"]
    assert text == (
        'serving static runtimes for 32 and 64 tokens, all on every worker: deployment.runtimes is "bundle"; of 3 '
        "runtimes these fit best, 200 of 299 MB: over lengths that are not known, a row costs 4.8 ms of a worker, with "
        "all 4.4 ms"
    )
    names, text = held(memory(tmp_path, 'runtimes = "bundle"\nlengths = "uniform:1:16"', 299))
    assert names == ["m_len16", "m_len64"]
    assert text.endswith("over uniform:1:16, a row costs 1.6 ms of a worker, with all 1.6 ms")
    assert held(memory(tmp_path, 'runtimes = "bundle"', 100))[0] == ["m_len64"]
    names, text = held(memory(tmp_path, "", 300))
    assert names == ["m_len16", "m_len32", "m_len64"]
    assert text.endswith("rows of one length go together on any worker; together they take 300 of 300 MB")
    with pytest.raises(ConfigError, match="the longest runtime, m_len64, takes 100 MB, more than the 99"):
        choose(memory(tmp_path, 'runtimes = "bundle"', 99), manifest)
    # Memory for one at a time, or told otherwise: a runtime for each worker, allocated by length.
    for deployment, memory_mb in (("", 150), ('runtimes = "static"', 300), ("allocation = {64 = 1}", 300)):
        settings = memory(tmp_path, deployment, memory_mb)
        assert choose(settings, manifest).manifest.runtimes == manifest.runtimes
        assert choose(settings, manifest).serve == "static"


def test_memory_changes_nothing_where_a_dynamic_runtime_is_quicker(tmp_path: Path) -> None:
    for dynamic_us, serve in ((1000, ["m_dynamic"]), (2500, ["m_len16", "m_len64"])):
        manifest = recommended(write(tmp_path, static_us=1000, dynamic_us=dynamic_us, memory_mb=100))
        settings = memory(tmp_path, "", 300)
        assert choose(settings, manifest).serve == "dynamic"
        runtime = dynamic_runtime(choose(settings, manifest).manifest)
        assert runtime is not None
        assert [part.name for part in runtime.parts] == serve
