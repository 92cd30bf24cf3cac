"""The command line. `main` is the `arlo` program; commands.py lists its subcommands, each in a module of its own."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """See arlo.cli.app.main; a Ctrl-C while that is imported ends as any other one."""
    try:
        from arlo.cli import app

        return app.main(argv)
    except KeyboardInterrupt:
        return 130


__all__ = ["main"]
