"""docs/events.md lists every event that the Python parts log, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FIELDS = {"ts", "level", "event", "resumed"}  # named in the same section
OF_THE_GATEWAY = {"instance_ejected", "instance_joined"}
OF_THE_LOG = {"log_lines_dropped"}  # said by the handler itself


def emitted() -> set[str]:
    """The name of each event, which every call of emit() gives as a constant."""
    names = set()
    for path in (ROOT / "arlo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "emit":
                name = node.args[1]
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: an event is named by a constant"
                names.add(str(name.value))
    return names


def test_every_event_is_listed() -> None:
    page = (ROOT / "docs" / "events.md").read_text()
    listed = set(re.findall(r"`([a-z_]+)`", page)) - FIELDS - OF_THE_GATEWAY - OF_THE_LOG
    assert listed == emitted()
