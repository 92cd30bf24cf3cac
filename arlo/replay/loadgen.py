"""Sends a replay: writes a plan, runs arlo-loadgen, reads its progress lines and its records."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.client.codec import Codec
from arlo.client.errors import ClientError, UnavailableError
from arlo.client.rows import PreparedRow
from arlo.client.transport import TLS
from arlo.errors import ConfigError, EnvironmentProblem
from arlo.replay.options import CONNECT_S, ReplayOptions
from arlo.replay.outcomes import CODE_OF
from arlo.replay.plan import write_plan
from arlo.replay.progress import ProgressHook, of_line
from arlo.replay.rows import Rows

PROGRAM = "arlo-loadgen"
PROGRESS_EVERY_S = 0.5
GRACE_S = 1.0  # after an interrupt: how long to wait for requests in flight
_BAD_INPUT, _UNREACHABLE, _INTERRUPTED = 2, 3, 130


def find_loadgen() -> Path:
    """The load generator: $ARLO_LOADGEN, else where the package installed it, else on the PATH."""
    named = os.environ.get("ARLO_LOADGEN")
    if named:
        if not os.access(named, os.X_OK):
            raise EnvironmentProblem(f"ARLO_LOADGEN names {named}, which is not a program")
        return Path(named)
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if os.access(folder / PROGRAM, os.X_OK):
            return folder / PROGRAM
    found = shutil.which(PROGRAM)
    if found is None:
        raise EnvironmentProblem(f"{PROGRAM} is not installed: run `make setup` or `pip install .`")
    return Path(found)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SendResult:
    """The results of a send. `messages` maps records["error"] to the server's messages."""

    records: NDArray[Any]  # dtype SENT
    messages: Mapping[int, str]
    responses: Mapping[int, Mapping[str, NDArray[Any]]]  # index -> outputs without row dimension
    interrupted: bool
    undrained: bool  # answers were still missing when the waiting ended
    cpu_s: float  # of the load generator, while it sent


def send(
    options: ReplayOptions,
    codec: Codec,
    rows: Rows,
    send_at_us: NDArray[np.int64],
    *,
    on_progress: ProgressHook | None,
    stop: threading.Event,
) -> SendResult:
    """Send the rows at these instants, ascending, from the start. Blocks until all is answered, or `stop` is set, or
    Ctrl-C; then returns the results so far. UnavailableError when the target does not accept the connections.
    """
    program = find_loadgen()
    with tempfile.TemporaryDirectory(prefix="arlo-replay-") as folder:
        work = Path(folder)
        requests = (codec.encode([PreparedRow(row.ids, {}, row.text)], request_id="") for row in rows.rows)
        payloads = [request.SerializeToString() for request in requests]
        write_plan(work / "plan", payloads, send_at_us, rows.which, round(options.gives_up_ms * 1000))
        final = _supervise([str(program), "open", *_flags(options, work)], work / "stderr", on_progress, stop)
        records = np.load(work / "records.npy")
        messages = {i: str(e["message"]) for i, e in enumerate(final["errors"], start=1)}
        raw = _read_responses(work / "responses") if options.keep_responses else {}
        return SendResult(
            records=records,
            messages=messages,
            responses=_decode(codec, rows, raw, records, messages),
            interrupted=bool(final["interrupted"]),
            undrained=bool(final["undrained"]),
            cpu_s=float(final["cpu_s"]),
        )


def connection_flags(tls: TLS | None, token: str | None, work: Path) -> list[str]:
    """The flags of arlo-loadgen for TLS and token; the token is passed in a file that only the user can read."""
    flags: list[str] = []
    if tls is not None:
        files = {"--ca-file": tls.ca, "--cert-file": tls.cert, "--key-file": tls.key}
        flags = ["--tls", *_pairs({**files, "--server-name": tls.server_name})]
    if token is not None:
        path = work / "token"
        path.touch(mode=0o600)
        path.write_text(token)
        flags += ["--token-file", str(path)]
    return flags


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [text for flag, value in values.items() if value is not None for text in (flag, str(value))]


def _flags(options: ReplayOptions, work: Path) -> list[str]:
    values: dict[str, object] = {
        "--target": options.endpoint,
        "--plan": work / "plan",
        "--records": work / "records.npy",
        "--channels": options.channels,
        "--warmup": options.warmup,
        "--slo-us": round(options.slo_ms * 1000),
        "--late-us": round(options.late_ms * 1000),
        "--drain-s": options.drain_s,
        "--grace-s": GRACE_S,
        "--connect-s": CONNECT_S,
        "--progress-s": PROGRESS_EVERY_S,
    }
    if options.keep_responses:
        values |= {"--responses": work / "responses", "--response-every": options.keep_responses}
    return _pairs(values) + connection_flags(options.tls, options.token, work)


def _supervise(
    command: list[str], stderr: Path, on_progress: ProgressHook | None, stop: threading.Event
) -> dict[str, Any]:
    """Run the load generator to its end; returns its final report."""
    # Its own process group: Ctrl-C comes to us, and we pass it on, once. If we die, its writes fail and it ends.
    with (
        stderr.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True) as process,
    ):
        try:
            final = _follow(process, on_progress, stop)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
    message = stderr.read_text(errors="replace").strip().removeprefix(f"{PROGRAM}: ")
    if code == _UNREACHABLE:
        raise UnavailableError(f"{message or 'the target was not reached'} (check that it runs and that TLS is right)")
    if code == _BAD_INPUT:
        raise ConfigError(message or f"{PROGRAM} did not understand its flags")
    if code not in (0, _INTERRUPTED) or final is None:
        raise EnvironmentProblem(f"{PROGRAM} ended with {code}: {message or 'no message'}")
    return final


def _follow(
    process: subprocess.Popen[bytes], on_progress: ProgressHook | None, stop: threading.Event
) -> dict[str, Any] | None:
    """Read lines until the output ends. A first Ctrl-C, or `stop`, ends the sending; a second one is the caller's."""
    final: dict[str, Any] | None = None
    asked = False

    def ask() -> None:
        nonlocal asked
        if not asked:
            asked = True
            process.send_signal(signal.SIGINT)

    lines = _lines(process)
    while True:
        try:
            line = next(lines, None)
        except KeyboardInterrupt:
            if asked:
                raise
            ask()
            lines = _lines(process)  # a generator that raised is over
            continue
        if line is None:
            return final
        if line["type"] == "done":
            final = line
        elif on_progress is not None:
            on_progress(of_line(line))
        if stop.is_set():
            ask()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in iter(process.stdout.readline, b""):
        yield json.loads(line.decode(errors="replace"))


def _read_responses(path: Path) -> dict[int, bytes]:
    data = path.read_bytes()
    found, at = {}, 0
    while at < len(data):
        index, size = (int.from_bytes(data[at + i : at + i + 4], "little") for i in (0, 4))
        found[index] = data[at + 8 : at + 8 + size]
        at += 8 + size
    return found


def _decode(
    codec: Codec, rows: Rows, raw: dict[int, bytes], records: NDArray[Any], messages: dict[int, str]
) -> dict[int, dict[str, NDArray[Any]]]:
    """The outputs by index. A malformed answer turns its record into a failure, as it would for a client."""
    decoded = {}
    for index, data in raw.items():
        try:
            response = service_pb2.ModelInferResponse.FromString(data)
            lengths = (0 if codec.only_text else len(rows.of(index).ids),)
            result = codec.decode(response, lengths, batched=False, attempts=1, elapsed_us=0)
            decoded[index] = dict(result.outputs)
        except (ClientError, DecodeError) as error:
            key = next((k for k, m in messages.items() if m == str(error)), min(len(messages) + 1, 255))
            messages[key] = str(error)
            row = np.searchsorted(records["index"], index)
            records["code"][row], records["error"][row] = CODE_OF["INTERNAL"], key
    return decoded
