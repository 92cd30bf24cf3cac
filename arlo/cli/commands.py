"""The commands and their actions: name, module, one line. A module is imported only when it is asked for.

A module has add_parser(subparsers) -> ArgumentParser, and run(args) -> exit code (None is 0). If a command has
arguments, as in `arlo compile SOURCE`, the name of an action takes precedence: `arlo compile inspect REPOSITORY`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
from typing import Any

from arlo.cli.text import HelpFormatter


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command, or an action of one: `compile inspect`."""

    name: str
    module: str
    summary: str

    @property
    def word(self) -> str:
        """The name of its parser."""
        return self.name.split()[-1]


COMMANDS = (
    Command("up", "arlo.cli.up.command", "a model folder in, vectors out: compile what is missing, and serve it"),
    Command("serve", "arlo.cli.serve", "start workers and gateway and keep them serving"),
    Command("compile", "arlo.compile.tools.compile", "build a Triton repository: one runtime per maximum length"),
    Command("adapt", "arlo.cli.adapt", "variants of one model that merge tokens: accuracy for time"),
    Command("fit", "arlo.cli.fit.command", "labelled texts in, operating points out: several models as one"),
    Command("plan", "arlo.cli.plan.command", "how many instances of each runtime a demand needs; what-if questions"),
    Command(
        "simulate",
        "arlo.cli.simulate.command",
        "what a cluster would do with a stream of requests: latency, SLO, GPU-hours",
    ),
    Command("replay", "arlo.replay.cli", "send a trace to an endpoint and report the outcome of every request"),
    Command("top", "arlo.cli.top.command", "what is served, how loaded it is, how fast it answers: live, or once"),
    Command("report", "arlo.cli.report", "result files as a page, one over the other"),
    Command("config", "arlo.cli.config", "check or show a configuration file; choose an operating point"),
    Command("version", "arlo.cli.version", "versions of Arlo and its parts"),
)

ACTIONS = (
    Command("serve gateway", "arlo.cli.gateway", "run the gateway alone, in the foreground"),
    Command("serve triton", "arlo.cli.triton", "start one Triton server on a repository, without a gateway"),
    Command("compile lengths", "arlo.cli.lengths", "which maximum lengths to compile for; what-if questions"),
    Command(
        "compile inspect", "arlo.compile.tools.inspect", "explain a repository: how exact, how fast, what to do next"
    ),
    Command("compile verify", "arlo.compile.tools.verify", "run a repository's engines against the original's answers"),
    Command("compile profile", "arlo.cli.profile.command", "measure the latency of every runtime on a real worker"),
    Command("compile emulate", "arlo.cli.emulate", "write a repository whose runtimes take the time of a table"),
    Command("compile wrap", "arlo.cli.wrap", "any model that Triton serves, as a stage of a flow"),
    Command("adapt task", "arlo.cli.task", "tasks that share one adapted body: add one without a restart"),
    Command("plan flow", "arlo.cli.flow.command", "a flow of several models: what is odd about it, and its plans"),
    Command("simulate trace", "arlo.cli.trace.command", "make a trace, or see what one is like"),
)

NEGATIVE_NUMBERS = re.compile(r"^-\.?\d")

BY_NAME = {command.name: command for command in COMMANDS + ACTIONS}


def add(subparsers: Any, command: Command) -> tuple[argparse.ArgumentParser, Any]:
    """Import a command's module and add its parser; returns the parser and the module."""
    module = importlib.import_module(command.module)
    parser: argparse.ArgumentParser = module.add_parser(subparsers) or subparsers.choices[command.word]
    if mine := actions_of(command):
        lines = [f"  arlo {each.name:17} {each.summary}" for each in mine]
        parser.epilog = "\n".join([*([parser.epilog.rstrip(), ""] if parser.epilog else []), "actions:", *lines])
    for each in [parser, *nested(parser)]:
        each.formatter_class = HelpFormatter
        # `--demand -1,1` is a wrong number, which the command reports, not an option.
        each._negative_number_matcher = NEGATIVE_NUMBERS
    return parser, module


def actions_of(command: Command) -> list[Command]:
    """The actions of a command."""
    return [each for each in ACTIONS if each.name.startswith(f"{command.name} ")]


def nested(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Parsers of a parser's own subcommands, each once."""
    found: list[argparse.ArgumentParser] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                found += [child, *nested(child)]
    return found
