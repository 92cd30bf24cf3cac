"""Work in other processes: several runtimes at a time, isolated from crashes and from chatty C++ libraries.

TensorRT prints to the standard streams from C++ and takes gigabytes; a model that it cannot build may crash the
process. So builds run in fresh worker processes whose standard streams go to a file. A worker's reports (steps begun
and ended) reach the caller as they happen. When the caller dies, even by kill -9, the kernel kills the workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from arlo.errors import ArloError, CompileError

Item = TypeVar("Item")
Result = TypeVar("Result")
Tell = Callable[[Any], None]

_PR_SET_PDEATHSIG = 1
_LAST_WORDS = 600  # characters of a dead worker's output that its error carries


def run_all(
    work: Callable[[Item, Tell], Result],
    items: Sequence[Item],
    *,
    jobs: int,
    tell: Callable[[Item, Any], None],
    title: Callable[[Item], str],
) -> list[Result]:
    """`work(item, tell)` for every item, in `jobs` processes; the results in the order of the items.

    work: a module-level function, so that it can be pickled; items, results and messages must be picklable as well. The
    first error ends everything: an ArloError as it is, any other as CompileError naming `title(item)`. A worker that
    dies is such an error, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="arlo-build-") as logs, contextlib.ExitStack() as stack:
        waiting = list(enumerate(items))[::-1]
        results: dict[int, Result] = {}
        workers = [
            stack.enter_context(_worker(work, Path(logs) / f"{number}.log")) for number in range(min(jobs, len(items)))
        ]
        busy: dict[Any, tuple[_Worker[Item], int]] = {}
        for worker in workers:
            index, item = waiting.pop()
            worker.give(item)
            busy[worker.connection] = (worker, index)
        while busy:
            for connection in wait(list(busy)):
                worker, index = busy[connection]
                kind, value = worker.hear(title(items[index]))
                if kind == "told":
                    tell(items[index], value)
                    continue
                results[index] = value
                del busy[connection]
                if waiting:
                    index, item = waiting.pop()
                    worker.give(item)
                    busy[connection] = (worker, index)
        return [results[index] for index in range(len(items))]


class _Worker(Generic[Item]):
    """One process, from `_worker` until that ends. Used by one thread."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Any, log: Path) -> None:
        self._process = process
        self._log = log
        self.connection = connection

    def give(self, item: Item) -> None:
        """Let it work on an item; it must be idle."""
        with contextlib.suppress(BrokenPipeError):  # it died: hear() says so
            self.connection.send(item)

    def hear(self, title: str) -> tuple[str, Any]:
        """The next message. Raises the error that it carries as ArloError, or CompileError if the process is gone."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.wait()
            raise CompileError(f"build: {title}: {self._death()}{self._last_words()}") from None
        if kind == "failed":
            if isinstance(value, ArloError):
                raise value
            raise CompileError(f"build: {title}: {value}{self._last_words()}")
        return kind, value

    def _death(self) -> str:
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "its process was killed, as happens when memory runs out: try --jobs 1 or a larger machine"
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code and code < 0 else f"with exit code {code}"
        return f"its process ended {how}"

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            text = self._log.read_text(errors="replace").strip()
            if text:
                return f"; it printed: {text[-_LAST_WORDS:]}"
        return ""


@contextlib.contextmanager
def _worker(work: Callable[[Item, Tell], Result], log: Path) -> Iterator[_Worker[Item]]:
    # Not multiprocessing's own start: that imports the caller's main script again, which may lack the guard for it.
    ours, theirs = multiprocessing.Pipe()
    command = [sys.executable, "-P", "-c", _START, str(theirs.fileno()), str(os.getpid())]
    with ours, log.open("ab") as stream:
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        theirs.close()
        try:
            with contextlib.suppress(BrokenPipeError):
                ours.send(work)
            yield _Worker(process, ours, log)
        finally:
            process.kill()
            process.wait()


_START = "import sys; from arlo.compile.parallel import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"


def serve(handle: int, parent: int) -> None:
    """The worker process: one item after the other, until the caller is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the caller ends this process
    connection: Any = Connection(handle)
    with contextlib.suppress(EOFError, BrokenPipeError):
        work = connection.recv()
        while True:
            item = connection.recv()
            try:
                answer = ("done", work(item, lambda value: connection.send(("told", value))))
            except ArloError as error:
                answer = ("failed", error)
            except Exception as error:
                answer = ("failed", f"{type(error).__name__}: {error}")
            try:
                connection.send(answer)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                connection.send(("failed", f"its result cannot be sent ({error})"))
