"""The subcommands: name, module, one line. A module is imported only when its command is asked for.

A module has add_parser(subparsers) -> ArgumentParser, and run(args) -> exit code (None is 0).
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
    """One subcommand."""

    name: str
    module: str
    summary: str


COMMANDS = (
    Command("compile", "arlo.compile.tools.compile", "build a Triton repository: one runtime per maximum length"),
    Command("inspect", "arlo.compile.tools.inspect", "explain a repository: how exact, how fast, what to do next"),
    Command(
        "verify", "arlo.compile.tools.verify", "run a repository's engines here against the original model's answers"
    ),
    Command("adapt", "arlo.cli.adapt", "variants of one model that merge tokens: accuracy for time"),
    Command("task", "arlo.cli.task", "tasks that share one adapted body: add one without a restart"),
    Command("lengths", "arlo.cli.lengths", "which maximum lengths to compile for; what-if questions"),
    Command("wrap", "arlo.cli.wrap", "any model that Triton serves, as a stage of a pipeline"),
    Command("emulate", "arlo.cli.emulate", "write a repository whose runtimes answer after the time of a table"),
    Command("profile", "arlo.cli.profile.command", "measure the latency of every runtime on a real worker"),
    Command("up", "arlo.cli.up.command", "a model folder in, vectors out: compile what is missing, and serve it"),
    Command("serve", "arlo.cli.serve", "start workers and gateway and keep them serving"),
    Command("triton", "arlo.cli.triton", "start one Triton server on a repository, without a gateway"),
    Command("fit", "arlo.cli.fit.command", "labelled texts in, operating points out: several models as one"),
    Command("flow", "arlo.cli.flow.command", "pipelines of models as one: check, plan, report"),
    Command("plan", "arlo.cli.plan.command", "how many instances of each runtime a demand needs; what-if questions"),
    Command("trace", "arlo.cli.trace.command", "make a trace, or see what one is like"),
    Command(
        "simulate",
        "arlo.cli.simulate.command",
        "what a cluster would do with a stream of requests: latency, SLO, GPU-hours",
    ),
    Command("replay", "arlo.replay.cli", "send a trace to an endpoint and report what came of every request"),
    Command("report", "arlo.cli.report", "result files as a page, one over the other"),
    Command("status", "arlo.cli.top.status", "what is served, how loaded it is, how fast it answers"),
    Command("top", "arlo.cli.top.command", "the same as a live screen"),
    Command("config", "arlo.cli.config", "check or show a configuration file"),
    Command("gateway", "arlo.cli.gateway", "run the gateway alone, in the foreground"),
    Command("demo", "arlo.cli.demo.command", "the whole path on a real model and real text, in minutes"),
    Command("version", "arlo.cli.version", "versions of Arlo and of what it stands on"),
)

NEGATIVE_NUMBERS = re.compile(r"^-\.?\d")

BY_NAME = {command.name: command for command in COMMANDS}


def add(subparsers: Any, command: Command) -> tuple[argparse.ArgumentParser, Any]:
    """Import a command's module and add its parser; returns the parser and the module."""
    module = importlib.import_module(command.module)
    parser = module.add_parser(subparsers)
    if parser is None:
        parser = subparsers.choices[command.name]
    for each in [parser, *nested(parser)]:
        each.formatter_class = HelpFormatter
        # `--demand -1,1` is a wrong number, which the command names, not an option.
        each._negative_number_matcher = NEGATIVE_NUMBERS
    return parser, module


def nested(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Parsers of a parser's own subcommands, each once."""
    found: list[argparse.ArgumentParser] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                found += [child, *nested(child)]
    return found
