"""The command line. `main` is the `arlo` program; commands.py lists its subcommands, each in a separate module."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

_AGAIN_S = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """See arlo.cli.app.main; a Ctrl-C during its import ends like any other."""
    lost = _LostInterrupts()
    try:
        from arlo.cli import app

        return app.main(argv)
    except BaseException as error:
        if not interrupted(error):
            raise
        return 130
    finally:
        lost.end()


class _LostInterrupts:
    """Python cannot raise a Ctrl-C in a callback of an import or in C: it prints and forgets it.

    Here it is sent again a moment later instead, and nothing is printed.
    """

    any = False  # of this process' command

    def __init__(self) -> None:
        _LostInterrupts.any = False
        self._timers: list[threading.Timer] = []
        self._hooks = (sys.excepthook, sys.unraisablehook)
        sys.excepthook, sys.unraisablehook = self._printed, self._ignored

    def end(self) -> None:
        sys.excepthook, sys.unraisablehook = self._hooks
        for timer in self._timers:
            timer.cancel()

    def _printed(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._again()
        else:
            self._hooks[0](kind, error, trace)

    def _ignored(self, what: Any) -> None:
        if isinstance(what.exc_value, KeyboardInterrupt):
            self._again()
        else:
            self._hooks[1](what)

    def _again(self) -> None:
        _LostInterrupts.any = True
        self._timers.append(threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)))
        self._timers[-1].daemon = True
        self._timers[-1].start()


def interrupted(error: BaseException | None) -> bool:
    """Whether the error comes from a Ctrl-C: an interrupted import may raise another error."""
    if error is not None and _LostInterrupts.any:
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


__all__ = ["interrupted", "main"]
