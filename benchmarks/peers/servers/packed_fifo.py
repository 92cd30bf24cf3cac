"""A server of embeddings with text-embeddings-inference's batching rule, on Arlo's torch engine.

    python -m benchmarks.peers.servers.packed_fifo --model FOLDER [--device cuda] [--fronts 8] [--tokenizer FILE]

Rows wait in one queue, in order of arrival. When the engine is free it takes rows from the front while their tokens sum
up to no more than the budget, and computes them packed, without padding. FOLDER is a model folder of the torch engine.

One process has the engine; `--fronts` others (packed_front.py) take requests over gRPC and HTTP, share its ports, and
parse, tokenize and answer meanwhile. With several, clients should open 10 connections or more for each of them, as the
kernel spreads connections and not requests.

Prints `ready {"grpc": ..., "http": ...}` once it answers, and `stopped {...}` with its counts after SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.servers.packed_rule import Facts, Ids, PackedFifo, Refusal, Row

ROOT = Path(__file__).resolve().parents[3]
OUTPUT = "sentence_embedding"
SWITCH_S = 0.0001  # for which a thread may hold up the one that computes


@dataclasses.dataclass(slots=True)
class Counts:
    """What the engine did. Times are seconds since it began to serve."""

    batches: int = 0
    rows: int = 0
    tokens: int = 0
    computing_s: float = 0.0
    idle_s: float = 0.0  # nothing waited
    serving_s: float = 0.0


Batch = tuple[list[Row], Ids, NDArray[np.int32]]  # rows, their tokens end to end, their borders


def joined(rows: list[Row]) -> Batch:
    """A batch's tokens end to end."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row.ids) for row in rows], out=offsets[1:])
    return rows, np.concatenate([row.ids for row in rows]), offsets


# Rows that were in one batch, why they were refused or None, the reason or their vectors, start and end of the run.
Outcome = tuple[list[Row], Refusal | None, Any, float, float]


class Server:
    """The engine between its fronts. `serve` computes in the caller's thread; one thread receives and one sends.

    It stops once `signals` can be read: a thread that waits for a condition may not see a signal.
    """

    def __init__(
        self, session: Any, rule: PackedFifo, fronts: Sequence[Connection], signals: socket.socket, *, prefetch: bool
    ) -> None:
        self.counts = Counts()
        self.failed = False  # a front ended by itself
        self._session, self._rule, self._fronts, self._prefetch = session, rule, list(fronts), prefetch
        self._open = {pipe: front for front, pipe in enumerate(fronts)}
        self._signals = signals
        self._changed = threading.Condition()
        self._next: Batch | None = None  # closed already, with `prefetch`
        self._stopping = False
        self._answers: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()  # None: let the fronts stop

    def serve(self) -> None:
        """Compute until all fronts have ended."""
        threading.Thread(target=self._send, name="send", daemon=True).start()
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        start_s = time.monotonic()
        while batch := self._take():
            self._compute(batch)
        self.counts.serving_s = time.monotonic() - start_s

    def _stop(self) -> None:
        """Let the fronts answer their waiting requests and end."""
        if not self._stopping:
            self._stopping = True
            self._answers.put(None)

    def _take(self) -> Batch | None:
        """The next batch, once there is one; None when all fronts have ended."""
        with self._changed:
            while True:
                batch, self._next = self._next, None
                batch = batch or self._closed()
                if batch is not None:
                    self._next = self._closed() if self._prefetch else None
                    return batch
                if not self._open:
                    return None
                before_s = time.monotonic()
                self._changed.wait()
                self.counts.idle_s += time.monotonic() - before_s

    def _closed(self) -> Batch | None:
        rows = self._rule.take()
        return joined(rows) if rows else None

    def _compute(self, batch: Batch) -> None:
        rows, ids, offsets = batch
        start_s = time.monotonic()
        try:
            (vectors,) = self._session.run_packed((OUTPUT,), ids, offsets)
        except Exception as error:
            if len(rows) > 1:  # one bad row must not fail the others
                for row in rows:
                    self._compute(joined([row]))
                return
            refusal = Refusal.INVALID if isinstance(error, ValueError) else Refusal.FAILED
            self._answers.put((rows, refusal, str(error), start_s, start_s))
            return
        end_s = time.monotonic()
        self._answers.put((rows, None, vectors, start_s, end_s))
        self.counts.batches += 1
        self.counts.rows += len(rows)
        self.counts.tokens += len(ids)
        self.counts.computing_s += end_s - start_s

    def _receive(self) -> None:
        """Queue what the fronts send, until all have ended."""
        while self._open:
            for pipe in wait([*self._open, *([] if self._stopping else [self._signals])]):
                if not isinstance(pipe, Connection):
                    self._stop()
                    continue
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    self._end(pipe)
                    continue
                self._queue(self._open[pipe], *message)

    def _queue(self, front: int, numbers: list[int], lengths: list[int], ids: Ids, left: list[int]) -> None:
        now_s = time.monotonic()
        begin = 0
        with self._changed:
            for number, length in zip(numbers, lengths, strict=True):
                row = Row((front, number), ids[begin : begin + length], now_s)
                begin += length
                if refusal := self._rule.add(row):
                    self._answers.put(([row], *refusal, now_s, now_s))
            for number in left:
                self._rule.leave((front, number))
            if self._prefetch and self._next is None:
                self._next = self._closed()
            self._changed.notify()

    def _end(self, pipe: Connection) -> None:
        self.failed |= not self._stopping
        self._stop()
        with self._changed:
            del self._open[pipe]
            self._changed.notify()

    def _send(self) -> None:
        while True:
            answered = self._answers.get()
            if answered is None:
                for front in range(len(self._fronts)):
                    self._tell(front, None)
                continue
            rows, refusal, found, start_s, end_s = answered
            with self._changed:
                self._rule.finish(rows)
            by_front: dict[int, list[int]] = {}
            for index, row in enumerate(rows):
                by_front.setdefault(row.key[0], []).append(index)
            for front, indices in by_front.items():
                numbers = [rows[index].key[1] for index in indices]
                queue_us = [int((start_s - rows[index].arrived_s) * 1e6) for index in indices]
                part = found if refusal is not None or len(indices) == len(rows) else found[indices]
                self._tell(front, (numbers, refusal, part, queue_us, int((end_s - start_s) * 1e6)))

    def _tell(self, front: int, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._fronts[front].send(message)


def make_session(args: argparse.Namespace) -> tuple[Any, Facts]:
    """The engine, warmed up, and what fronts must know of its model."""
    from benchmarks.gpu.standalone import attach

    attach()  # in a plain checkout
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded: threads that spin starve the fronts
    from arlo.templates.torch.encoder import Architecture
    from arlo.templates.torch.session import Session

    arch = Architecture.read(args.model)
    precision = args.precision or ("fp16" if args.device == "cuda" else "fp32")
    session = Session(
        args.model,
        device=args.device,
        device_id=args.device_id,
        threads=args.threads,
        precision=precision,
        kinds=("packed",),
        budget=args.max_batch_tokens,
        compiled=args.compiled,
    )
    for _ in range(2):
        (vector,) = session.run_packed((OUTPUT,), np.zeros(2, np.int64), np.array([0, 2], np.int32))
    return session, Facts(longest=arch.positions, vocabulary=arch.vocabulary, dims=vector.shape[1])


def reserved(host: str, port: int) -> socket.socket:
    """A port that fronts can share; 0: a free one. It stays ours while the socket is open."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind((host, port))
    return found


def start_front(args: argparse.Namespace, grpc_port: int, http_port: int) -> tuple[subprocess.Popen[bytes], Connection]:
    """A front, and our end of the socket pair to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "benchmarks.peers.servers.packed_front", "--pipe", str(theirs.fileno())]
    command += ["--host", args.host, "--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    command += ["--max-tokens", str(args.max_tokens)]
    command += ["--tokenizer", str(args.tokenizer)] if args.tokenizer else []
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=os.environ | {"PYTHONPATH": str(ROOT)})
    return process, Connection(ours.detach())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parse = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.servers.packed_fifo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parse.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="a model folder of the torch engine")
    parse.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parse.add_argument("--device-id", type=int, default=0, metavar="N")
    parse.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help="default: fp16 on a GPU, else fp32")
    parse.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="of a CPU")
    parse.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=True, help="layers, on a GPU")
    parse.add_argument("--max-batch-tokens", type=int, default=16384, metavar="N", help="default: 16384")
    parse.add_argument("--max-batch-rows", type=int, default=512, metavar="N", help="default: 512")
    parse.add_argument("--max-concurrent", type=int, default=512, metavar="N", help="rows here at a time; default: 512")
    parse.add_argument("--prefetch", action="store_true", help="close the next batch when one starts, not when it ends")
    parse.add_argument("--fronts", type=int, default=1, metavar="N", help="processes that take requests; default: 1")
    parse.add_argument("--host", default="127.0.0.1")
    parse.add_argument("--grpc-port", type=int, default=0, metavar="N", help="default: a free one")
    parse.add_argument("--http-port", type=int, default=0, metavar="N", help="default: a free one")
    parse.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json, for texts over HTTP")
    parse.add_argument(
        "--max-tokens", type=int, default=0, metavar="N", help="where texts are cut; default: the model's"
    )
    return parse


def _exit(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> int:
    """The exit code."""
    args = parser().parse_args()
    signal.signal(signal.SIGTERM, _exit)  # until it serves
    ports = [reserved(args.host, port) for port in (args.grpc_port, args.http_port)]
    grpc_port, http_port = (each.getsockname()[1] for each in ports)
    fronts = [start_front(args, grpc_port, http_port) for _ in range(args.fronts)]
    pipes = [pipe for _, pipe in fronts]
    session, facts = make_session(args)
    for pipe in pipes:
        pipe.send(dataclasses.asdict(facts))
    for pipe in pipes:
        pipe.recv()  # it listens
    sys.setswitchinterval(SWITCH_S)
    rule = PackedFifo(budget=args.max_batch_tokens, most_rows=args.max_batch_rows, bound=args.max_concurrent)
    signalled, signals = socket.socketpair()
    signalled.setblocking(False)
    signal.set_wakeup_fd(signalled.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = Server(session, rule, pipes, signals, prefetch=args.prefetch)
    addresses = {"grpc": f"{args.host}:{grpc_port}"} | ({"http": f"{args.host}:{http_port}"} if args.tokenizer else {})
    print("ready", json.dumps(addresses), flush=True)
    server.serve()
    for process, _ in fronts:
        process.wait()
    counts = dataclasses.asdict(server.counts) | {"refused": rule.refused, "dropped": rule.dropped}
    print("stopped", json.dumps(counts), flush=True)
    return 1 if server.failed else 0


if __name__ == "__main__":
    sys.exit(main())
