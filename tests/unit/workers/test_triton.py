"""Finding the Triton server; its command line and environment; arguments of the pools. Starts nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
import sys
import sysconfig
from pathlib import Path

import pytest

from arlo.errors import ConfigError, EnvironmentProblem, WorkerError
from arlo.workers import EndpointsPool
from arlo.workers.paths import arlo_backends_dir, guard_program
from arlo.workers.ports import ReservedPort, free_port
from arlo.workers.triton import preload
from arlo.workers.triton import server as triton_module
from arlo.workers.triton.preload import KEY_PLACEHOLDER
from arlo.workers.triton.server import (
    TritonOptions,
    TritonServer,
    admin_headers,
    command_line,
    environment,
    find_triton,
    key_environment,
    prepare_backends,
)


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRITON_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(triton_module, "_package_dir", lambda: None)


def package(root: Path, *versions: str) -> Path:
    program(root / "tritonserver" / "bin" / "tritonserver")
    for version in versions:
        program(root / "tritonserver" / "python_backend_stubs" / version / "triton_python_backend_stub")
    return root


@pytest.mark.usefixtures("no_server")
class TestFindTriton:
    def test_none(self) -> None:
        with pytest.raises(EnvironmentProblem, match=r"arlo-serve\[triton\]"):
            find_triton()

    def test_on_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        binary = program(tmp_path / "opt" / "bin" / "tritonserver")
        monkeypatch.setenv("PATH", str(binary.parent))
        server = find_triton()
        assert server.executable == binary
        assert server.backends == tmp_path / "opt" / "backends"
        assert server.python_stub is None

    def test_package_before_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(program(tmp_path / "opt" / "bin" / "tritonserver").parent))
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        root = package(tmp_path / "site" / "pytriton", version)
        monkeypatch.setattr(triton_module, "_package_dir", lambda: root)
        server = find_triton()
        assert server.executable == root / "tritonserver" / "bin" / "tritonserver"
        assert server.library_dirs == (tmp_path / "site" / "nvidia_pytriton.libs",)
        assert server.python_stub is not None
        assert server.python_stub.parent.name == version

    def test_package_without_a_stub_for_this_python(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        root = package(tmp_path / "pytriton", "3.8", "3.9")
        monkeypatch.setattr(triton_module, "_package_dir", lambda: root)
        with pytest.raises(EnvironmentProblem, match=r"use one of 3\.8, 3\.9"):
            find_triton()

    def test_the_variable_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(triton_module, "_package_dir", lambda: package(tmp_path / "pytriton", "3.11"))
        binary = program(tmp_path / "mine" / "bin" / "tritonserver")
        monkeypatch.setenv("TRITON_SERVER", str(binary))
        assert find_triton().executable == binary
        monkeypatch.setenv("TRITON_SERVER", str(tmp_path / "nowhere"))
        with pytest.raises(EnvironmentProblem, match="is not a program"):
            find_triton()


SERVER = TritonServer(executable=Path("/t/bin/tritonserver"), backends=Path("/t/backends"))


def test_command_line() -> None:
    options = TritonOptions(repository=Path("/models"), grpc_port=9001, exit_timeout_s=7, shm_prefix="p_")
    assert command_line(SERVER, Path("/all"), options) == [
        "/t/bin/tritonserver",
        "--model-repository=/models",
        "--backend-directory=/all",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        "--strict-readiness=false",
        "--exit-timeout-secs=7",
        "--model-load-thread-count=4",
        "--grpc-address=127.0.0.1",
        "--grpc-port=9001",
        "--reuse-grpc-port=true",
        "--grpc-http2-min-recv-ping-interval-without-data=5000",
        "--grpc-keepalive-permit-without-calls=1",
        "--log-format=ISO8601",
        "--allow-http=false",
        "--allow-metrics=false",
        "--backend-config=python,shm-region-prefix-name=p_",
    ]


def test_command_line_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_module, "has_gpu", lambda: False)
    options = TritonOptions(
        repository=Path("/models"),
        grpc_port=1,
        http_port=2,
        metrics_port=3,
        address="10.0.0.1",
        admin_key="k",
        extra=("--id=x",),
    )
    command = command_line(dataclasses.replace(SERVER, executable=Path("/t/bin/mine")), Path("/all"), options)
    for argument in (
        "--grpc-address=10.0.0.1",
        "--http-address=10.0.0.1",
        "--http-port=2",
        "--metrics-address=10.0.0.1",
        "--metrics-port=3",
        "--allow-gpu-metrics=false",
        "--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:arlo-admin=k",
    ):
        assert argument in command
    assert command[-1] == "--id=x"
    assert admin_headers("k") == {"triton-grpc-protocol-arlo-admin": "k"}
    assert admin_headers(None) == {}


def test_environment(tmp_path: Path) -> None:
    libraries = tmp_path / "libs"
    libraries.mkdir()
    server = TritonServer(
        executable=Path("/t"),
        backends=Path("/b"),
        library_dirs=(libraries, tmp_path / "nowhere"),
        python_stub=Path("/stub"),
    )
    base = {"PATH": "/bin", "LD_LIBRARY_PATH": "/mine", "PYTHONPATH": "/code", "OTHER": "kept"}
    env = environment(server, threads=3, base=base)
    assert env["OTHER"] == "kept"
    paths = env["LD_LIBRARY_PATH"].split(os.pathsep)
    assert paths[0] == str(libraries)
    assert paths[-1] == "/mine"
    assert str(tmp_path / "nowhere") not in paths
    assert env["PATH"].split(os.pathsep) == [sysconfig.get_path("scripts"), "/bin"]
    assert env["PYTHONPATH"].split(os.pathsep)[:2] == ["/code", sysconfig.get_path("purelib")]
    assert env["OMP_NUM_THREADS"] == env["ARLO_THREADS"] == "3"
    assert base["PATH"] == "/bin"


def test_the_key_is_not_on_the_command_line_of_tritonserver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARLO_SHARE_DIR", str(tmp_path))
    options = TritonOptions(repository=Path("/models"), grpc_port=1, admin_key="secret")
    assert any("secret" in argument for argument in command_line(SERVER, Path("/all"), options))
    assert key_environment(SERVER, "secret") == {}
    library = program(tmp_path / "lib" / "libarlo_key.so")
    command = command_line(SERVER, Path("/all"), options)
    assert not any("secret" in argument for argument in command)
    assert sum(KEY_PLACEHOLDER in argument for argument in command) == 1
    assert key_environment(SERVER, "secret") == {"ARLO_WORKER_KEY": "secret"}
    assert key_environment(SERVER, None) == {}
    assert environment(SERVER, threads=1, base={})["LD_PRELOAD"] == str(library)


def test_what_unloads_quickly_is_preloaded_for_the_back_end_that_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARLO_SHARE_DIR", str(tmp_path))
    backend = program(tmp_path / "backends" / "python" / "libtriton_python.so")
    server = dataclasses.replace(SERVER, backends=tmp_path / "backends")
    digest = hashlib.sha256(backend.read_bytes()).hexdigest()
    library = program(tmp_path / "lib" / "libarlo_unload.so")
    assert "LD_PRELOAD" not in environment(server, threads=1, base={}), "of another version"
    monkeypatch.setitem(preload.LOOKED_AT, digest, "of the test")
    assert environment(server, threads=1, base={})["LD_PRELOAD"] == str(library)
    assert environment(server, threads=1, base={"LD_PRELOAD": "/mine.so"})["LD_PRELOAD"] == f"{library}:/mine.so"
    library.unlink()
    assert "LD_PRELOAD" not in environment(server, threads=1, base={}), "not installed"


def test_the_installed_server_is_one_that_was_looked_at() -> None:
    pytest.importorskip("pytriton")
    assert any("unload" in str(library) for library in preload.preloaded(find_triton().backends))


def test_environment_of_another_server_leaves_python_alone() -> None:
    env = environment(SERVER, threads=1, base={"PATH": "/bin"})
    assert env["PATH"] == "/bin"
    assert "PYTHONPATH" not in env


def test_prepare_backends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    share, theirs = tmp_path / "share", tmp_path / "theirs"
    (share / "backends" / "arlo_emulated").mkdir(parents=True)
    for name in ("python", "onnxruntime"):
        (theirs / name).mkdir(parents=True)
    (theirs / "python" / "libtriton_python.so").write_text("library")
    stub = program(tmp_path / "stubs" / "triton_python_backend_stub")
    monkeypatch.setenv("ARLO_SHARE_DIR", str(share))
    server = TritonServer(executable=Path("/t"), backends=theirs, python_stub=stub)

    folder = prepare_backends(server, cache=tmp_path / "cache")
    assert sorted(entry.name for entry in folder.iterdir()) == ["arlo_emulated", "onnxruntime", "python"]
    assert (folder / "python" / "libtriton_python.so").read_text() == "library"
    assert (folder / "python" / "triton_python_backend_stub").resolve() == stub
    assert prepare_backends(server, cache=tmp_path / "cache") == folder
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]  # no scratch is left

    (theirs / "more").mkdir()
    other = prepare_backends(server, cache=tmp_path / "cache")
    assert other != folder
    assert (other / "more").is_dir()


def test_parts_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARLO_SHARE_DIR", str(tmp_path))
    for look in (guard_program, arlo_backends_dir):
        with pytest.raises(EnvironmentProblem, match="make setup"):
            look()


def test_a_reserved_port_is_shared_only_with_who_asks_to() -> None:
    reserved = ReservedPort("127.0.0.1")
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", reserved.port))
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", reserved.port))
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", reserved.port))
        server.listen()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", reserved.port), timeout=5):
                server.accept()[0].close()
        client.connect(("127.0.0.1", reserved.port))
    reserved.release()
    reserved.release()
    assert free_port("127.0.0.1") > 0
    with pytest.raises(WorkerError, match=r"no free port on 192\.0\.2\.1"):
        ReservedPort("192.0.2.1")


@pytest.mark.parametrize(
    ("endpoints", "reason"),
    [([], "at least one"), (["host"], "not host:port"), (["h:x"], "not host:port"), (["h:1", "h:1"], "listed twice")],
)
def test_endpoints_are_checked(endpoints: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        EndpointsPool(endpoints)
