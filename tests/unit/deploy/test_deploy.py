"""docker-compose.yml and deploy/: valid, consistent, and every command line in it known to the program that runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from arlo.control.http.metrics import METRICS

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def workers(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in compose["services"].items() if name.startswith("worker-")}


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("docker-compose.yml", {"gateway", "control", "prometheus", "grafana", "worker-0"}),
        ("deploy/plugin/docker-compose.yml", {"triton"}),
    ],
)
def test_compose_accepts_the_file(file: str, names: set[str]) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed")
    result = subprocess.run(
        [program, "--file", str(ROOT / file), "config"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert names <= set(yaml.safe_load(result.stdout)["services"])


def test_one_gpu_for_each_worker(compose: dict[str, Any]) -> None:
    devices = []
    for service in workers(compose).values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        devices += device["device_ids"]
    assert devices == sorted(set(devices))
    assert len(devices) == len(workers(compose)) >= 2


def test_only_the_gateway_is_open_to_others(compose: dict[str, Any]) -> None:
    """Workers and the admin port are administration; other published ports are on loopback."""
    published = {name: service.get("ports", []) for name, service in compose["services"].items()}
    outside = {name: [p for p in ports if not p.startswith("127.0.0.1:")] for name, ports in published.items()}
    assert {name: ports for name, ports in outside.items() if ports} == {"gateway": ["8001:8001", "8080:8080"]}
    assert compose["networks"]["back"] == {"internal": True}
    for service in workers(compose).values():
        assert service["networks"] == ["back"]


def test_bind_mounts_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), volume


def test_gateway_and_control_commands_are_arlos(compose: dict[str, Any]) -> None:
    """The command of each container, run here up to the file that it names."""
    for name in ("gateway", "control"):
        program, *command, file = compose["services"][name]["command"]
        assert program == "arlo"
        assert file == "/etc/arlo/arlo.toml"
        help_text = run_arlo(*command, "--help")
        assert help_text.returncode == 0, help_text.stderr
        missing = run_arlo(*command, "/nonexistent/arlo.toml")
        assert missing.returncode == 2
        assert "/nonexistent/arlo.toml does not exist" in missing.stderr
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for command in re.findall(r"^CMD (\[.*\])$", dockerfile, flags=re.M):
        assert json.loads(command) in [compose["services"][name]["command"] for name in ("gateway", "control")]


def run_arlo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "arlo.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)


def test_the_configuration_is_valid_and_fits_the_services(compose: dict[str, Any]) -> None:
    checked = run_arlo("config", "check", "--keys-only", str(DEPLOY / "arlo.toml"))
    assert checked.returncode == 0, checked.stderr
    shown = run_arlo("config", "show", "--json", str(DEPLOY / "arlo.toml"))
    config = json.loads(shown.stdout)
    assert config["workers"]["endpoints"] == [f"{name}:8001" for name in workers(compose)]
    assert sum(config["deployment"]["allocation"].values()) == len(workers(compose))
    aliases = compose["services"]["gateway"]["networks"]["back"]["aliases"]
    assert config["gateway"]["admin_address"] == f"{aliases[0]}:8003"
    mounts = compose["services"]["control"]["volumes"]
    assert any(mount.split(":")[-2] == config["model"]["repository"] for mount in mounts)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(("name", "path"), [("gateway", "/livez"), ("worker-0", "/v2/health/live")])
@pytest.mark.parametrize("status", [200, 503])
def test_health_checks_tell_good_from_bad(compose: dict[str, Any], name: str, path: str, status: int) -> None:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    server.seen, server.status = [], status  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        kind, program, flag, code = compose["services"][name]["healthcheck"]["test"]
        assert (kind, program, flag) == ("CMD", "python3", "-c")
        here = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{server.server_port}", code)
        result = subprocess.run([sys.executable, "-c", here], capture_output=True, check=False, timeout=30)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (result.returncode == 0) == (status == 200)
    assert server.seen == [path]  # type: ignore[attr-defined]


def test_prometheus_scrapes_every_part(compose: dict[str, Any]) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = [t for job in config["scrape_configs"] for s in job["static_configs"] for t in s["targets"]]
    assert sorted(targets) == sorted(["control:8004", *(f"{name}:8002" for name in ["gateway", *workers(compose)])])


def dashboard_metrics() -> set[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "arlo.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    return {name for expression in expressions for name in re.findall(r"\b(?:arlo|nv)_\w+", expression)}


def test_grafana_is_provisioned_with_what_is_there(compose: dict[str, Any]) -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "arlo.yml").read_text())["providers"]
    mounts = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "arlo.json").read_text())
    assert source["isDefault"], "what the board's variable begins with"
    drawn = [*dashboard["panels"], *dashboard["annotations"]["list"], *dashboard["templating"]["list"][1:]]
    assert {each["datasource"]["uid"] for each in drawn} == {"${datasource}"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_dashboard_is_of_one_job_gateway_and_model() -> None:
    """Every metric is selected by the variables whose labels it has, and every variable is there."""
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "arlo.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    labels = {metric.full_name: metric.labels for metric in METRICS}
    for name, selector in re.findall(r"\b((?:arlo|nv)_\w+)(\{[^}]*\})?", " ".join(expressions)):
        assert 'job=~"$job"' in selector, name
        if name in labels:
            assert ('model=~"$model"' in selector) == ("model" in labels[name]), name
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "model"]
    queries = [variable["query"]["query"] for variable in dashboard["templating"]["list"][1:]]
    used = set(re.findall(r"\$(\w+)", " ".join(expressions + queries))) - {"__rate_interval"}
    assert used == {"job", "instance", "model"}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    control = {metric.full_name for metric in METRICS}
    declared = "".join(path.read_text() for path in (ROOT / "src" / "gateway").rglob("*metrics*"))
    for name in dashboard_metrics():
        if name.startswith("arlo_control_"):
            assert name in control, f"the control plane has no metric {name}"
        elif name.startswith("arlo_"):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert f'"{base}"' in declared, f"the gateway has no metric {base}"


@pytest.mark.long
def test_the_gateway_image_has_the_libraries_the_program_needs() -> None:
    """`ldd` on the program built here, each library's Debian package, against the list in the Dockerfile."""
    program = gateway_program()
    if program is None or shutil.which("dpkg-query") is None or "12" not in Path("/etc/debian_version").read_text():
        pytest.skip("needs the built gateway on Debian 12, the distribution of the image")
    linked = re.findall(
        r"=> (/\S+)", subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    )
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    listed = set(re.findall(r"^\s+(lib\S+) \\$", dockerfile, flags=re.M))
    reached = closure(listed | {"libc6", "libstdc++6", "libgcc-s1"})
    needed = packages_of([Path(path) for path in linked])
    assert needed <= reached, f"add to deploy/Dockerfile: {sorted(needed - reached)}"


def gateway_program() -> str | None:
    beside = Path(sys.executable).parent / "arlo-gateway"
    return str(beside) if beside.exists() else shutil.which("arlo-gateway")


def packages_of(libraries: Sequence[Path]) -> set[str]:
    """The Debian packages that own them, by one of the paths that each has."""
    paths = {
        library: (str(library), str(library.resolve()), f"/usr{library}", str(library.resolve()).removeprefix("/usr"))
        for library in libraries
    }
    command = ["dpkg-query", "-S", *sorted({path for each in paths.values() for path in each})]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # it fails where it finds none
    owners = {
        path: names.split(":")[0]
        for names, _, path in (line.rpartition(": ") for line in found.splitlines() if not line.startswith("diversion"))
    }
    for library, each in paths.items():
        assert owners.keys() & set(each), f"no package owns {library}"
    return {next(owners[path] for path in each if path in owners) for each in paths.values()}


def closure(packages: set[str]) -> set[str]:
    """The packages and all that they depend on, as installed here."""
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Depends}, ${Pre-Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    needs = dict(line.split("\t") for line in listed.splitlines())
    seen: set[str] = set()
    todo = list(packages)
    while todo:
        package = todo.pop()
        if package in seen:
            continue
        seen.add(package)
        parts = needs.get(package, "").split(",")
        todo += [re.split(r"[ :(|]", part.strip())[0] for part in parts if part.strip()]
    return seen


@pytest.mark.parametrize(
    ("arguments", "installed"),
    [
        ({"ENGINE": "onnxruntime"}, {"onnxruntime"}),
        ({"ENGINE": "onnxruntime-gpu"}, {"onnxruntime-gpu[cuda,cudnn]"}),
        ({"ENGINE": "torch"}, {"torch", "safetensors", "transformers"}),
        ({"ENGINE": "onnxruntime", "ENGINE_PACKAGES": "other==1 another==2"}, {"other", "another"}),
        ({"ENGINE": "none"}, None),
    ],
)
def test_the_workers_image_installs_one_engine(
    arguments: dict[str, str], installed: set[str] | None, tmp_path: Path
) -> None:
    """The shell command of the image, with a pip that prints what it is asked for."""
    dockerfile = (DEPLOY / "Dockerfile.worker").read_text()
    (command,) = re.findall(r"^RUN (case .*?[^\\])$", dockerfile, flags=re.M | re.S)
    pip = tmp_path / "pip"
    pip.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    pip.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | arguments
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, env=env, cwd="/")
    if installed is None:
        assert done.returncode == 1
        assert "use onnxruntime, onnxruntime-gpu or torch" in done.stderr
        return
    words = done.stdout.split()
    assert (words[:2], words[-1]) == (["install", "--no-cache-dir"], "numpy<2")
    assert {word.partition("==")[0] for word in words[2:-1]} == installed


def test_documented_commands_are_shell() -> None:
    """The commands in docs/deploy.md parse, and their compose services exist."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, flags=re.M | re.S)
    assert blocks
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        assert shlex.split(line, comments=True) is not None


def test_the_metrics_page_is_the_gateways() -> None:
    """docs/metrics.md lists exactly what a running gateway exports."""
    if gateway_program() is None:
        pytest.skip("the gateway is not built")
    command = [sys.executable, str(ROOT / "tools" / "metrics_page.py"), str(ROOT / "docs" / "metrics.md"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
