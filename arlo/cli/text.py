"""How help and messages look: fixed width, the same under every Python version, so that docs/cli.md can be compared."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

WIDTH = 100


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Text as written, `-o, --out DIR` rather than `-o DIR, --out DIR`, at most WIDTH columns."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, max_help_position=28, width=WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        text = ", ".join(action.option_strings)
        if action.nargs != 0:
            text += " " + self._format_args(action, self._get_default_metavar_for_optional(action))
        return text


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def print_json_line(value: Any) -> None:
    """One JSON document on one line, at once."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()
