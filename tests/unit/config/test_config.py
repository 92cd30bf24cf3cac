"""The configuration: what is accepted, what is refused and with which words, what the gateway gets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Literal, get_origin

import pytest
from google.protobuf import json_format

from arlo import _core, config, proto
from arlo.catalog.toml_text import to_toml
from arlo.cli.config import effective
from arlo.config.field import Doc, hints, option, same, section
from arlo.config.flag import choices
from arlo.config.gateway import gateway_json
from arlo.config.keeping import ControlConfig, ScalingConfig
from arlo.config.load import toml_key
from arlo.config.model import SECTIONS, DispatchConfig
from arlo.config.reference import reference
from arlo.errors import ConfigError
from arlo.planning.allocation.solve import OBJECTIVES, SOLVERS
from arlo.planning.scaling.policies import make_policy

SMALL = """\
[model]
repository = "minilm"
slo_ms = 150

[deployment]
allocation = {64 = 2, 512 = 1}
"""
BASE = Path("/srv/arlo")


def parse(text: str) -> config.Config:
    return config.parse(text, base=BASE, source="serve.toml")


def test_further_names_of_models_go_to_the_gateway() -> None:
    loaded = parse(SMALL + '[gateway]\naliases = {"text-embedding-3-small" = "minilm"}\n')
    assert json.loads(gateway_json(loaded))["aliases"] == {"text-embedding-3-small": "minilm"}
    assert json.loads(gateway_json(parse(SMALL)))["aliases"] == {}


def test_smallest_file_gets_defaults_and_paths_relative_to_it() -> None:
    loaded = parse(SMALL)
    assert loaded.model.repository == BASE / "minilm"
    assert loaded.workers.run_dir == BASE / ".arlo"
    assert loaded.model.timeout_ms == 1500
    assert loaded.deployment.allocation == {64: 2, 512: 1}
    assert loaded.worker_count == 3
    assert loaded.dispatch.policy == "late"
    assert (loaded.dispatch.lambda_, loaded.dispatch.alpha, loaded.dispatch.max_peek) == (0.85, 0.9, 6)


def test_file_is_read_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text(SMALL)
    assert config.load(tmp_path / "serve.toml").model.repository == tmp_path / "minilm"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("slo_ms", "slo_msec", "serve.toml:3: model.slo_msec is not a key of [model]: did you mean 'slo_ms'?"),
        ("[deployment]", "[deploment]", "serve.toml:5: unknown section [deploment]: did you mean 'deployment'?"),
        ("= 150", "= 0", "serve.toml:3: model.slo_ms must be at least 1, at most 3,600,000 ms, not 0"),
        ("= 150", "= true", "serve.toml:3: model.slo_ms must be an integer, not True"),
        ("= 150", "= 150\nname = ''", "serve.toml:4: model.name must not be empty"),
        ("= 150", "= 150\ndefault_timeout_ms = 100", "default_timeout_ms must be at least slo_ms (150), not 100"),
        ("slo_ms = 150\n", "", "serve.toml:1: model.slo_ms is missing"),
        ('"minilm"', "7", "serve.toml:2: model.repository must be a path, not 7"),
        ('"minilm"', '""', "serve.toml:2: model.repository must be a path, not an empty string"),
        ("{64 = 2, 512 = 1}", "{}", "serve.toml:6: deployment.allocation has no instance"),
        ("{64 = 2, 512 = 1}", "{long = 2}", "serve.toml:6: deployment.allocation has the key 'long'"),
        ("{64 = 2, 512 = 1}", "{64 = -1, 512 = 2}", "serve.toml:6: deployment.allocation has 64 = -1"),
        (
            "512 = 1}",
            "512 = 1}\n[gateway]\naliases = {a = 1}",
            "serve.toml:8: gateway.aliases must be a table of name = model",
        ),
        ("{64 = 2, 512 = 1}", "[64, 512]", "serve.toml:6: deployment.allocation must be a table of length"),
        ("[model]", "model = 3\n[modell]", "serve.toml:2: unknown section [modell]: did you mean 'model'?"),
        ("[model]", "[model", "serve.toml is not TOML"),
    ],
)
def test_refused(old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError) as caught:
        parse(SMALL.replace(old, new))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("[workers]\ncount = 2", "serve.toml:8: workers.count gives 2 worker(s), but [deployment] has 3"),
        ("[workers]\nkind = 'remote'", 'serve.toml:8: workers.kind must be "local" or "endpoints"'),
        ("[workers]\nendpoints = ['a:1']", "serve.toml:8: workers.endpoints goes with kind"),
        ("[workers]\nkind = 'endpoints'", "serve.toml:7: workers.endpoints must list at least one"),
        ("[workers]\nkind = 'endpoints'\nendpoints = ['a']", 'serve.toml:9: workers.endpoints must be "host:port"'),
        ("[workers]\nkind = 'endpoints'\nendpoints = ['a:0']", "with a port from 1 to 65535, not 'a:0'"),
        ("[workers]\nkind = 'endpoints'\nendpoints = ['a:1', 'a:1', 'b:1']", "lists an endpoint twice"),
        ("[workers]\nkind = 'endpoints'\nendpoints = ['a:1']\ncount = 3", "workers.count goes with kind"),
        ("[workers]\nkind = 'endpoints'\nendpoints = ['a:1']", "serve.toml:9: workers.endpoints gives 1 worker(s)"),
        ("[gateway]\ngrpc_address = '8001'", "serve.toml:8: gateway.grpc_address must be"),
        ("[gateway]\nhttp_address = 'h:65536'", "serve.toml:8: gateway.http_address must be"),
        ("[gateway]\nadmin_address = 'unix:'", "serve.toml:8: gateway.admin_address must be"),
        ("[gateway]\ngrpc_address = 'unix:/run/a'", "serve.toml:8: gateway.grpc_address must be"),
        ("[gateway]\ncors_origins = ['https://a.example/']", "gateway.cors_origins must be * or origins"),
        ("[gateway]\ncors_origins = ['a.example']", "gateway.cors_origins must be * or origins"),
        ("[gateway]\ntls_key_file = 'k'", "gateway.tls_key_file needs tls_certificate_file beside it"),
        ("[gateway]\ntls_certificate_file = 'k'", "gateway.tls_certificate_file needs tls_key_file beside it"),
        ("[gateway]\ntls_client_ca_file = 'k'", "gateway.tls_client_ca_file needs tls_certificate_file and"),
        ("[gateway]\nmanaged = false\nadmin_address = 'h:0'", "serve.toml:9: gateway.admin_address needs the port"),
        ("[dispatch]\nlambda = 0", "serve.toml:8: dispatch.lambda must be above 0"),
        ("[dispatch]\nlambda = nan", "serve.toml:8: dispatch.lambda must be above 0"),
        ("[dispatch]\nalpha = 1.01", "serve.toml:8: dispatch.alpha must be above 0, at most 1, not 1.01"),
        ("[dispatch]\npolicy = 'best'", 'serve.toml:8: dispatch.policy must be "rs" or "ilb"'),
        ("[dispatch]\nmax_peak = 3", "dispatch.max_peak is not a key of [dispatch]: did you mean 'max_peek'?"),
        ("[health]\nfailures = 0", "serve.toml:8: health.failures must be at least 1"),
        ("[health]\nzzz = 0", "health.zzz is not a key of [health]; known: interval_ms, timeout_ms, failures"),
    ],
)
def test_refused_section(section: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(SMALL + section + "\n")
    assert message in str(caught.value)


TWO = """\
[[model]]
name = "a"
repository = "ra"
slo_ms = 50
[[model]]
name = "b"
repository = "rb"
slo_ms = 100
share = 3
[workers]
count = 2
"""


def test_several_models_share_the_rest() -> None:
    two = parse(TWO)
    assert [(m.name, m.slo_ms, m.share, m.timeout_ms) for m in two.models] == [
        ("a", 50, 1.0, 1000),
        ("b", 100, 3, 1000),
    ]
    assert two.worker_count == 2
    alone = two.of(two.models[1])
    assert (alone.model.name, alone.more_models, alone.workers) == ("b", (), two.workers)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "b"\n', "", "serve.toml:5: model.name is missing: each of several models has one"),
        ('name = "b"', 'name = "a"', "serve.toml:6: model.name is 'a' twice"),
        ("share = 3", "share = 0", "serve.toml:9: model.share must be above 0"),
        ("slo_ms = 100", "slo = 100", "serve.toml:8: model.slo is not a key of [model]: did you mean 'slo_ms'?"),
        (
            "count = 2",
            "count = 2\n[deployment]\nallocation = {64 = 1}",
            "serve.toml:13: deployment.allocation goes with",
        ),
        ("count = 2", "count = 2\n[deployment]\nruntimes = 'static'", "deployment.runtimes goes with one model"),
        ("count = 2", "count = 2\nkind = 'ray'", 'serve.toml:12: workers.kind is "ray", which serves one model'),
    ],
)
def test_refused_with_several_models(old: str, new: str, message: str) -> None:
    assert old in TWO
    with pytest.raises(ConfigError) as caught:
        parse(TWO.replace(old, new))
    assert message in str(caught.value)


def test_lengths_of_the_only_model_are_those_of_the_deployment() -> None:
    with pytest.raises(ConfigError, match=r"serve.toml:4: model.lengths goes with several \[\[model\]\]"):
        parse(SMALL.replace("= 150", "= 150\nlengths = 'tweets'"))


def test_section_that_is_no_table() -> None:
    with pytest.raises(ConfigError, match=r"serve.toml:1: health must be a table"):
        parse("health = 3\n" + SMALL)


def test_every_wrong_key_is_named() -> None:
    text = (
        '[model]\nrepositry = "x"\nslo_ms = "fast"\n[dispatch]\nalpha = 7\nmax_peak = 1\n'
        "[gatway]\n[limits]\nmax_rows = 0\n"
    )
    with pytest.raises(ConfigError) as raised:
        parse(text)
    said = str(raised.value).splitlines()
    assert [line.split(":")[1] for line in said] == ["1", "2", "3", "5", "6", "7", "9"]
    wanted = (
        "model.repository is missing",
        "repositry",
        "slo_ms must be",
        "alpha must be",
        "max_peak",
        "gatway",
        "max_rows",
    )
    for line, part in zip(said, wanted, strict=True):
        assert part in line


def test_a_repository_that_is_missing_is_named_before_what_follows_from_it(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text('[model]\nrepository = "nowhere"\nslo_ms = 9\n')
    with pytest.raises(ConfigError) as raised:
        config.load(tmp_path / "serve.toml")
    first, second = str(raised.value).splitlines()
    assert f"{tmp_path / 'nowhere'} has no arlo.json: build it with `arlo compile" in first
    assert "deployment.allocation has no instance" in second


def test_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        config.load(tmp_path / "no.toml")


def test_values_made_in_code_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"dispatch.max_peek must be at least 1"):
        dataclasses.replace(parse(SMALL).dispatch, max_peek=0)


def test_allocation_keys_written_as_tables_are_found() -> None:
    text = SMALL.replace("allocation = {64 = 2, 512 = 1}", "allocation.64 = 2\nallocation.512 = 1")
    assert parse(text).deployment.allocation == {64: 2, 512: 1}


def test_gateway_json_has_every_field_and_round_trips() -> None:
    loaded = parse(SMALL + "[dispatch]\nlambda = 0.5\n[gateway]\nthreads = 2\n")
    text = gateway_json(loaded, ready_file=Path("/run/ready.json"))
    written = json.loads(text)

    def missing(message: type, values: dict[str, object]) -> list[str]:
        names = []
        for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]
            if field.name not in values:
                names.append(field.name)
            elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
                names += missing(proto.message(field.message_type.name), values[field.name])  # type: ignore[arg-type]
        return names

    assert missing(proto.message("GatewayConfig"), written) == []
    message = json_format.Parse(text, proto.message("GatewayConfig")())
    assert getattr(message.dispatch, "lambda") == 0.5
    assert message.max_attempts == 3
    assert message.threads == 2
    assert message.ready_file == "/run/ready.json"
    assert message.max_message_bytes == 64 * 1024 * 1024
    assert message.health.retry_interval_ms == 250
    assert message.limits.resets == 1000


def test_gateway_files_must_exist(tmp_path: Path) -> None:
    loaded = parse(SMALL + "[gateway]\nbearer_token_file = 'token'\n")
    with pytest.raises(ConfigError, match=r"gateway.bearer_token_file: /srv/arlo/token is not a file"):
        gateway_json(loaded)
    (tmp_path / "token").write_text("secret\n")
    loaded = config.parse(SMALL + "[gateway]\nbearer_token_file = 'token'\n", base=tmp_path)
    assert json.loads(gateway_json(loaded))["bearer_token_file"] == str(tmp_path / "token")


def test_every_key_is_documented_and_in_the_reference() -> None:
    page = reference()
    for name, cls in SECTIONS.items():
        assert f"## [{name}]" in page
        for field in dataclasses.fields(cls):
            assert isinstance(field.metadata["doc"], Doc)
            assert field.metadata["doc"].text.endswith(".")
            assert f"| `{toml_key(field.name)}` |" in page


def test_the_names_that_may_be_chosen_are_those_that_there_are() -> None:
    assert set(choices(ControlConfig, "solver")) == set(SOLVERS)
    assert set(choices(ControlConfig, "objective")) == set(OBJECTIVES)
    for name in choices(DispatchConfig, "policy"):
        _core.Scheduler(name)
    scaling = dataclasses.asdict(ScalingConfig(max_workers=2))
    del scaling["policy"]
    for name in choices(ScalingConfig, "policy"):
        assert make_policy(name, **scaling).name == name


def test_a_key_that_two_sections_have_is_declared_once() -> None:
    @section("first")
    class First:
        load: float = option(default=0.5, doc="Share.", unit="s", minimum=0, maximum=1)

    @section("second")
    class Second:
        load: float = same(First, "load", default=0.25, maximum=2, but="Half, as nothing else is there.")

    doc = dataclasses.fields(Second)[0].metadata["doc"]  # type: ignore[arg-type]
    assert (doc.text, doc.unit, doc.minimum, doc.maximum) == ("Share. Half, as nothing else is there.", "s", 0, 2)
    assert Second().load == 0.25
    with pytest.raises(ConfigError, match=r"second.load must be at least 0, at most 2 s, not 3"):
        Second(load=3)
    for changed in ({"default": 0.25}, {"default": 0.5, "maximum": 2}):
        with pytest.raises(TypeError, match=r"First\.load differs here .*say why"):
            same(First, "load", **changed)


def test_effective_configuration_is_a_configuration() -> None:
    loaded = parse(SMALL + "[workers]\ncount = 4\n[gateway]\nmanaged = true\n")
    again = parse(to_toml(effective(loaded)))
    assert effective(again) == effective(loaded)
    assert again.worker_count == 4
    assert again.model.timeout_ms == 1500


def test_the_admin_port_may_be_a_socket() -> None:
    assert (
        parse(SMALL + "[gateway]\nadmin_address = 'unix:/run/arlo.sock'\n").gateway.admin_address
        == "unix:/run/arlo.sock"
    )


def test_keys_are_few_and_each_is_a_choice() -> None:
    keys = [(name, field) for name, cls in SECTIONS.items() for field in dataclasses.fields(cls)]
    assert len(keys) <= 110, "a new key takes the place of an old one"
    single = [
        f"{name}.{field.name}"
        for name, field in keys
        if get_origin(hints(SECTIONS[name])[field.name]) is Literal and len(choices(SECTIONS[name], field.name)) < 2
    ]
    assert single == [], "a key with one legal value says nothing"
