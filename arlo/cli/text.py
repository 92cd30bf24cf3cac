"""The form of help and messages: fixed width, equal under every Python version, so that docs/cli.md can be compared."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from arlo.errors import ConfigError, printable

WIDTH = 100
LONGEST_TEXT = 8192  # per argument


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


class Parser(argparse.ArgumentParser):
    """The common rules for every command's arguments: meaningless values are rejected as they are read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for kind, check in ((float, _number), (int, _whole), (Path, _path), (str, _text), (None, _text)):
            self.register("type", kind, check)

    def error(self, message: str) -> NoReturn:
        text = shown(re.sub(r"^argument ([^:]+): (must|has|holds) ", r"\1 \2 ", message))
        self.exit(2, f"{self.prog}: error: {text} (`{self.prog} --help` lists the options)\n")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return value


def _whole(text: str) -> int:
    try:
        value = int(text) if len(text) <= 20 else None
    except ValueError:
        value = None
    if value is None or not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be a whole number below 2^63, not {text!r}")
    return value


def between(low: float, high: float = math.inf, *, whole: bool = True, above: bool = False) -> Callable[[str], Any]:
    """The type of an argument: a number from `low` to `high`; `above`: more than `low`."""

    def read(text: str) -> float:
        value = _whole(text) if whole else _number(text)
        if value > high or value < low or (above and value == low):
            least = f"above {low:g}" if above else f"at least {low:g}"
            most = "" if math.isinf(high) else f", at most {high:g}"
            raise argparse.ArgumentTypeError(f"must be {least}{most}, not {text}")
        return value

    return read


def listed(
    low: float = -math.inf, high: float = math.inf, *, whole: bool = False, above: bool = False, ascending: bool = False
) -> Callable[[str], Any]:
    """The type of an argument: numbers joined by commas, each as of `between`; a tuple."""
    one = between(low, high, whole=whole, above=above)

    def read(text: str) -> tuple[float, ...]:
        try:
            found = tuple(map(one, text.split(",")))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error} (numbers are joined by commas: {_text(text)!r})") from None
        if ascending and list(found) != sorted(set(found)):
            raise argparse.ArgumentTypeError(f"must ascend, without one twice: {text!r}")
        return found

    return read


def words(text: str) -> tuple[str, ...]:
    """The type of an argument: names joined by commas."""
    return tuple(part.strip() for part in _text(text).split(",") if part.strip())


LENGTHS = listed(1, 1_000_000, whole=True, ascending=True)
TIMES_MS = listed(0, 1e9, above=True)


def only_with(args: argparse.Namespace, names: str, why: str) -> None:
    """ConfigError if one of these options, of names parted by spaces, was given."""
    for name in names.split():
        if getattr(args, name) not in (None, False):
            raise ConfigError(f"--{name.replace('_', '-')} {why}")


def _text(text: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise argparse.ArgumentTypeError(f"has {len(text):,} characters, more than {LONGEST_TEXT:,}")
    if any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n" for c in text):
        raise argparse.ArgumentTypeError(f"holds control characters, or is not UTF-8: {text!r}")
    return text


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a path, not an empty text")
    return Path(_text(text))


def shown(message: str) -> str:
    """A message that is safe for a terminal: texts from outside may hold anything and have any length."""
    lines = [printable(re.sub(r"\S{1000,}", lambda run: printable(run[0]), line.replace("\t", "    ")), limit=4000)
             for line in message.split("\n")]  # fmt: skip
    return "\n".join(lines if len(lines) <= 200 else [*lines[:100], "...", *lines[-100:]])


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def print_json_line(value: Any) -> None:
    """One JSON document on one line, at once."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()
