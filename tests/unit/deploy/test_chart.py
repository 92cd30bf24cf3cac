"""deploy/chart, as helm renders it: what deploy/kubernetes has, and what its values change."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from arlo import config
from arlo.cli.config import effective
from arlo.config.model import SECTIONS

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "chart"
PLAIN = ROOT / "deploy" / "kubernetes"
BUILT = ROOT / "build" / "chart" / "bin"
HELM = str(BUILT / "helm") if (BUILT / "helm").exists() else shutil.which("helm")

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not here: make chart")

Objects = dict[tuple[str, str], dict[str, Any]]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((str(HELM), *words), capture_output=True, text=True, timeout=60, check=False)


def rendered(*values: str) -> Objects:
    """By kind and name."""
    done = helm("template", "r", str(CHART), *(word for value in values for word in ("--set-json", value)))
    assert done.returncode == 0, done.stderr
    every = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in every}


def plain() -> Objects:
    every = [each for path in PLAIN.glob("*.yaml") for each in yaml.safe_load_all(path.read_text())]
    every += yaml.safe_load_all((PLAIN / "monitoring" / "monitors.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in every if "metadata" in each}


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def toml_of(objects: Objects, name: str, folder: Path) -> config.Config:
    text = objects["ConfigMap", "r-config"]["data"][name]
    text = text.replace("/etc/arlo-token/token", str(folder / "token"))
    (folder / name).write_text(text)
    return config.load(folder / name)


def test_it_is_a_chart() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_objects_are_those_of_the_manifests() -> None:
    objects = rendered("monitors=true")
    for (kind, name), wanted in plain().items():
        if kind == "Namespace":
            continue
        got = objects[kind, f"r-{name}"]
        if kind in ("Deployment", "StatefulSet"):
            assert got["spec"].get("replicas") == wanted["spec"].get("replicas")
            (ours,), (theirs,) = pod(got)["containers"], pod(wanted)["containers"]
            for key in ("minReadySeconds", "strategy"):
                assert got["spec"].get(key) == wanted["spec"].get(key), (name, key)
            assert pod(got)["terminationGracePeriodSeconds"] == pod(wanted)["terminationGracePeriodSeconds"]
            for key in ("startupProbe", "livenessProbe", "readinessProbe", "securityContext", "resources"):
                assert ours.get(key) == theirs.get(key), (name, key)
            if name != "control":  # there it is which file
                assert ours["args"] == theirs["args"]
            assert {each["mountPath"] for each in ours["volumeMounts"]} == {
                each["mountPath"] for each in theirs["volumeMounts"]
            }
            assert {json.dumps(each) for each in theirs["ports"]} <= {json.dumps(each) for each in ours["ports"]}
            assert pod(got).get("tolerations") == pod(wanted).get("tolerations")


def test_services_and_policies_select_the_pods_of_the_release() -> None:
    objects = rendered("monitors=true")
    pods = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for (kind, name), each in objects.items()
        if kind in ("Deployment", "StatefulSet")
    }

    def chosen(labels: dict[str, str]) -> list[str]:
        return [name for name, has in pods.items() if labels.items() <= has.items()]

    for (kind, name), each in objects.items():
        if kind == "Service":
            assert len(chosen(each["spec"]["selector"])) == 1, name
        if kind in ("NetworkPolicy", "PodDisruptionBudget"):
            assert len(chosen(each["spec"].get("podSelector", each["spec"].get("selector"))["matchLabels"])) == 1, name
        if kind == "ServiceMonitor":
            wanted = each["spec"]["selector"]["matchLabels"]
            services = [s for (k, _), s in objects.items() if k == "Service"]
            (only,) = (s for s in services if wanted.items() <= s["metadata"]["labels"].items())
            (endpoint,) = each["spec"]["endpoints"]
            assert endpoint["port"] in {port["name"] for port in only["spec"]["ports"]}
    admin = [
        rule for rule in objects["NetworkPolicy", "r-gateway"]["spec"]["ingress"] if {"port": 8003} in rule["ports"]
    ]
    (rule,) = admin
    assert chosen(rule["from"][0]["podSelector"]["matchLabels"]) == ["r-control"]


def test_the_configurations_are_read_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    objects = rendered(
        'allocation=[{"length":128,"workers":2},{"length":512,"workers":3}]',
        'gateway.tokenSecret="clients"',
        "sloMs=90",
    )
    of_gateway, of_control = (toml_of(objects, name, tmp_path) for name in ("arlo.toml", "control.toml"))
    assert objects["StatefulSet", "r-worker"]["spec"]["replicas"] == 5
    assert of_gateway.workers.endpoints[4] == "r-worker-4.r-workers:8001"
    assert of_gateway.gateway.api_address == "0.0.0.0:8080"
    assert of_gateway.gateway.admin_address == "0.0.0.0:8003"
    assert of_control.gateway.admin_address == "r-gateway-admin:8003"
    assert of_gateway.model.slo_ms == 90
    raw = tomllib.loads(objects["ConfigMap", "r-config"]["data"]["arlo.toml"])
    assert raw["deployment"]["allocation"] == {"128": 2, "512": 3}
    volumes = {each["name"]: each for each in pod(objects["Deployment", "r-gateway"])["volumes"]}
    assert volumes["secret-arlo-token"]["secret"]["secretName"] == "clients"


def test_every_key_of_every_section_can_be_given_as_a_value(tmp_path: Path) -> None:
    """Over what the chart writes by itself, too: no section is written twice."""
    sections = effective(toml_of(rendered(), "arlo.toml", tmp_path))
    assert set(sections) >= set(SECTIONS) - {"cascade", "pipeline"}
    sections["gateway"] |= {"drain_timeout_ms": 7000, "aliases": {'an "odd" name <&>': "m"}, "auto_truncate": True}
    sections["dispatch"] |= {"alpha": 0.5, "max_queued": 10_000_000}
    sections["limits"]["memory_bytes"] = 1 << 40
    sections["workers"]["linger_s"] = 7
    objects = rendered(f"config={json.dumps(sections)}")
    assert effective(toml_of(objects, "arlo.toml", tmp_path)) == sections
    of_control = effective(toml_of(objects, "control.toml", tmp_path))
    assert of_control.pop("gateway")["admin_address"] == "0.0.0.0:8003"  # as it is given
    assert of_control == {name: keys for name, keys in sections.items() if name != "gateway"}


def test_several_models_with_workers_of_their_own(tmp_path: Path) -> None:
    models = [{"name": name, "repository": f"/models/{name}", "slo_ms": 90, "workers": 2} for name in ("a", "b")]
    objects = rendered(f"config={json.dumps({'model': models})}", "allocation=[]", "workers.count=4")
    loaded = toml_of(objects, "arlo.toml", tmp_path)
    assert [(each.name, each.repository, each.slo_ms, each.workers) for each in loaded.models] == [
        ("a", Path("/models/a"), 90, 2),
        ("b", Path("/models/b"), 90, 2),
    ]
    assert loaded.workers.endpoints[3] == "r-worker-3.r-workers:8001"
    assert objects["StatefulSet", "r-worker"]["spec"]["replicas"] == 4


@pytest.mark.parametrize(
    "section",
    [{"cascade": {"manifest": "/models/cascade.json", "slo_ms": 90}}, {"pipeline": {"flow": "/models/f.toml"}}],
)
def test_a_cascade_or_a_pipeline_instead_of_a_model(section: dict[str, Any]) -> None:
    objects = rendered(f"config={json.dumps(section)}", "allocation=[]", "workers.count=2")
    raw = tomllib.loads(objects["ConfigMap", "r-config"]["data"]["arlo.toml"])
    assert raw == section | {name: raw[name] for name in ("control", "gateway", "workers")}


def test_secrets_are_files_of_the_gateway_and_the_control_plane(tmp_path: Path) -> None:
    for name in ("token", "tls.crt", "tls.key"):
        (tmp_path / name).write_text("secret")
    objects = rendered(
        'secrets={"tokens":"mine"}',
        'gateway.tlsSecret="web"',
        'gateway.tokenSecret="clients"',
        'config={"gateway":{"bulk_token_file":"/etc/tokens/token"}}',
    )
    text = objects["ConfigMap", "r-config"]["data"]["arlo.toml"]
    loaded = config.parse(re.sub("/etc/[a-z-]+/", f"{tmp_path}/", text), base=tmp_path)
    assert loaded.gateway.tls_certificate_file == tmp_path / "tls.crt"
    assert loaded.gateway.bulk_token_file == tmp_path / "token"
    for workload in (objects["Deployment", "r-gateway"], objects["StatefulSet", "r-control"]):
        (container,) = pod(workload)["containers"]
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        secrets = {each["name"]: each["secret"]["secretName"] for each in pod(workload)["volumes"] if "secret" in each}
        assert {path: secrets[name] for path, name in mounts.items() if name in secrets} == {
            "/etc/tokens": "mine",
            "/etc/arlo-tls": "web",
            "/etc/arlo-token": "clients",
        }


def test_what_is_left_out() -> None:
    objects = rendered("networkPolicy=false", "gateway.api=false", "workers.gpus=0", 'models.claim="mine"')
    assert not {kind for kind, _ in objects} & {"NetworkPolicy", "PersistentVolumeClaim", "ServiceMonitor"}
    (service,) = objects["Service", "r-gateway"]["spec"]["ports"]
    assert service["name"] == "grpc"
    (worker,) = pod(objects["StatefulSet", "r-worker"])["containers"]
    assert worker["resources"]["limits"] == {"memory": "16Gi"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("sloMs=0", "sloMs"),
        ('allocation=[{"length":"long","workers":1}]', "allocation"),
        ("gateway.replicas=2", "replicas"),
        ('models.size="much"', "size"),
        ("allocation=[]", "give `allocation` or `workers.count`"),
        ('config={"gateway":"[gateway]"}', "config"),
    ],
)
def test_wrong_values_are_refused_by_name(value: str, said: str) -> None:
    done = helm("template", "r", str(CHART), "--set-json", value)
    assert done.returncode != 0
    assert said in done.stderr


def test_objects_are_valid(tmp_path: Path) -> None:
    validator = BUILT / "kubernetes-validate"
    if not validator.exists():
        pytest.skip("kubernetes-validate is not here: make chart")
    (tmp_path / "all.yaml").write_text(helm("template", "r", str(CHART)).stdout)
    done = subprocess.run(
        (str(validator), "--strict", str(tmp_path / "all.yaml")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
