"""The command line. `main` is the `arlo` program; commands.py lists its subcommands, each in a module of its own."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """See arlo.cli.app.main; a Ctrl-C while that is imported ends as any other one."""
    try:
        from arlo.cli import app

        return app.main(argv)
    except BaseException as error:
        if not interrupted(error):
            raise
        return 130


def interrupted(error: BaseException | None) -> bool:
    """Whether it comes of a Ctrl-C: an import that is broken off may say something else."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


__all__ = ["interrupted", "main"]
