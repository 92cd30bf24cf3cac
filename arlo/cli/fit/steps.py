"""The results of each step of a fit, in a file next to the cascade: a step whose inputs are unchanged is not rerun."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arlo.catalog.toml_text import write_whole

FORMAT = 1


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"fit: {text}", file=sys.stderr, flush=True)


class Steps:
    """The file `cascade.fit.json`: options of the last fit, and its steps. Empty if it is missing, damaged or of
    another format."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            kept = json.loads(path.read_bytes())
            right = kept["format"] == FORMAT
            self._kept: dict[str, Any] = kept["steps"] if right else {}
            self.options: dict[str, Any] = kept["options"] if right else {}
        except (OSError, ValueError, KeyError, TypeError):
            self._kept, self.options = {}, {}

    def keep(self, options: dict[str, Any]) -> None:
        """Store the options that these steps are made with."""
        self.options = options
        self._save()

    def run(self, name: str, inputs: Any, make: Callable[[], Any]) -> Any:
        """The result of `make`, as JSON gives it back; the stored one if the same inputs have been seen before."""
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        kept = self._kept.get(name)
        if isinstance(kept, dict) and kept.get("inputs") == digest:
            say(f"{name}: unchanged, taken from {self._path}")
            return kept["found"]
        found = json.loads(json.dumps(make()))
        self._kept[name] = {"inputs": digest, "found": found}
        self._save()
        say(f"{name}: done")
        return found

    def _save(self) -> None:
        write_whole(self._path, json.dumps({"format": FORMAT, "options": self.options, "steps": self._kept}) + "\n")
