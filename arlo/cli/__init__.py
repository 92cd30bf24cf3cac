"""The command line. `main` is the `arlo` program; commands.py lists its subcommands, each in a module of its own."""

from arlo.cli.app import main

__all__ = ["main"]
