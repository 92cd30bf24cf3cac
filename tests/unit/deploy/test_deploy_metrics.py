"""docs/metrics.md says what a running gateway says. (docs/cli.md and docs/configuration.md: test_cli.py.)"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_the_metrics_page_is_the_gateways() -> None:
    if not (Path(sys.executable).parent / "arlo-gateway").exists() and shutil.which("arlo-gateway") is None:
        pytest.skip("the gateway is not built")
    command = [sys.executable, str(ROOT / "tools" / "metrics_page.py"), str(ROOT / "docs" / "metrics.md"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
