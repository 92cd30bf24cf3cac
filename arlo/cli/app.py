"""The `arlo` program: find the subcommand, import it, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import arlo
from arlo.cli import interrupted
from arlo.cli.commands import ACTIONS, BY_NAME, COMMANDS, add
from arlo.cli.text import HelpFormatter, Parser, shown
from arlo.errors import explain, known

DESCRIPTION = """Length-aware serving of BERT-like encoders in front of NVIDIA Triton.

A model is compiled once per maximum length; the gateway sends each request to the runtime that pads
it least, or to a longer one when that is quicker. Clients see one model, over the Triton protocol.
"""

EXIT_CODES = (
    (0, "done"),
    (1, "an error that Arlo did not expect, or a check that failed"),
    (2, "the command line, the configuration or a manifest is wrong"),
    (3, "a package, program, file, memory or disk space that is needed is missing"),
    (4, "a compile step failed"),
    (5, "a worker did not start, load or answer"),
    (6, "the gateway did not start, did not answer or refused a deployment"),
    (7, "a request failed"),
    (130, "interrupted (Ctrl-C)"),
)

EPILOG = (
    """examples:
  arlo compile MODEL_FOLDER --out minilm      build the runtimes (`arlo compile --help`)
  arlo serve serve.toml                       start workers and gateway
  arlo top --once                             see what it does
  arlo simulate --rate 4000 --find-workers    how many GPUs a load would need
  arlo replay TRACE --target 127.0.0.1:8001   put it under load
  arlo COMMAND --help                         more about a command, with examples

exit codes:
"""
    + "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES)
    + """

ARLO_DEBUG=1 in the environment shows the Python trace of an error.
"""
)


@dataclasses.dataclass(frozen=True, slots=True)
class Parsers:
    """The top parser; and, if one command was asked for, its parser and its module."""

    top: argparse.ArgumentParser
    command: argparse.ArgumentParser | None = None
    module: Any = None


def build_parsers(only: str | None = None) -> Parsers:
    """All commands with one line each, or the one named `only`, imported, with its options."""
    parser = Parser(
        prog="arlo", description=DESCRIPTION, epilog=EPILOG, formatter_class=HelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"arlo {arlo.__version__}")
    parent = only.rpartition(" ")[0] if only is not None else ""
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", prog=f"arlo {parent}" if parent else None
    )
    if only is not None:
        chosen, module = add(subparsers, BY_NAME[only])
        return Parsers(parser, chosen, module)
    for command in COMMANDS:
        subparsers.add_parser(command.name, help=command.summary)
    return Parsers(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code (see EXIT_CODES)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # gRPC's log of connections that come and go would appear among our log lines.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away (`arlo top --once | head`); keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    """Print the error in words; return the exit code."""
    if os.environ.get("ARLO_DEBUG"):
        traceback.print_exc()
    if interrupted(error):
        return 130
    found = known(error)
    if found is None:
        text = f"unexpected {explain(error)} (a fault of Arlo's: please report it; ARLO_DEBUG=1 shows where)"
    else:
        text = str(found)
    print(f"arlo: error: {shown(text)}", file=sys.stderr)
    return found.exit_code if found is not None else 1


def _run(arguments: list[str]) -> int:
    at = next((i for i, argument in enumerate(arguments) if not argument.startswith("-")), None)
    name = None if at is None else arguments[at]
    if at is not None and at + 1 < len(arguments) and (action := f"{name} {arguments[at + 1]}") in BY_NAME:
        name, arguments = action, arguments[:at] + arguments[at + 1 :]
    if name is not None and name not in BY_NAME:
        moved = [command.name for command in ACTIONS if command.word == name]
        match = moved or difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.5)
        hint = f"did you mean {match[0]!r}?" if match else "`arlo --help` lists the commands"
        print(f"arlo: error: unknown command {shown(repr(name))}: {hint}", file=sys.stderr)
        return 2
    parsers = build_parsers(name)
    try:
        args, unknown = parsers.top.parse_known_args(arguments)
        if unknown[:1] == ["--"] and getattr(args, "options", None) == []:
            args.options, unknown = unknown[1:], []  # argparse sees none behind options of the command
        if unknown:
            (parsers.command or parsers.top).error(f"unknown argument: {' '.join(unknown)}")
    except SystemExit as stop:  # argparse: 0 after --help, 2 after a usage error
        return stop.code if isinstance(stop.code, int) else 2
    if parsers.module is None:
        parsers.top.print_help()
        return 2
    code: int | None = parsers.module.run(args)
    sys.stdout.flush()
    return code or 0
