"""CPU per request and throughput of the HTTP API in front of an instant upstream: a text of 48 words (64 tokens with
the demo model's tokenizer) as JSON in, the vector as JSON out.

h2load asks over HTTP/1.1 on some connections, each with one request at a time; CPU is user + system time of the gateway
over the requests answered, so it counts all that a request costs: sockets, JSON, tokens, dispatch, gRPC both ways, and
the answer. `ids` sends the same token ids in place of the text. Vectors have 4 numbers (what a request costs without
its answer's numbers) or as many as --dims. `--before PROGRAM` puts an earlier build of the gateway in the same turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arlo import _core
from arlo.compile import demo_model_path
from benchmarks import harness
from tests.fakes import gateway as fakes

INSTANCES = 8
TEXT = (
    "The ferry to the Hebridean archipelago leaves the harbour every morning at half past seven, and returns before "
    "dusk unless the wind is stronger than its helmswoman likes; passengers should bring warm clothes, sandwiches, and "
    "thermoses, because notoriously unpredictable weather has cancelled several such crossings since early September."
)
TOKENS = 64


@contextlib.contextmanager
def serving(
    work: Path, endpoint: str, tokenizer: Path, *, dims: int, program: Path | None
) -> Iterator[tuple[Any, str]]:
    """A gateway on one thread, its process and the address of its HTTP API."""
    backend = harness.Backend(endpoint=endpoint, runtime="bench_len64", max_length=TOKENS)
    wanted = harness.deployment([backend] * INSTANCES, dims=dims)
    wanted.model.tokenizer = tokenizer.read_bytes()
    settings = {"log_level": "warning", "threads": 1}
    with asyncio.Runner() as runner:
        started = fakes.gateway_of(work, wanted, settings, program=program or harness.binary("arlo-gateway"))
        running = runner.run(started.__aenter__())
        try:
            yield harness.Measured(running.pid), running.api
        except BaseException:
            runner.run(started.__aexit__(*sys.exc_info()))
            raise
        runner.run(started.__aexit__(None, None, None))


def measure(program: Any, h2load: str, address: str, body: Path, *, connections: int, seconds: int) -> dict[str, float]:
    def run(seconds: int) -> str:
        command = [h2load, "--h1", "-c", str(connections), "-D", str(seconds), "-d", str(body)]
        command += ["-H", "content-type: application/json", f"http://{address}/v1/embeddings"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    run(1)
    before = program.cpu_s()
    said = run(seconds)
    used = program.cpu_s() - before
    good, all_of_them = re.search(r"status codes: (\d+) 2xx", said), re.search(r"requests: (\d+) total", said)
    assert good is not None
    assert all_of_them is not None, said
    if int(good[1]) == 0 or re.search(r"([1-9]\d*) [345]xx", said):
        raise SystemExit(f"requests failed: {said}")
    return {"cpu_us": used / int(good[1]) * 1e6, "rps": int(good[1]) / seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--seconds", type=int, default=4, help="of one turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--before", type=Path, metavar="PROGRAM", help="the arlo-gateway of an earlier build")
    args = parser.parse_args()
    h2load = harness.need("h2load", "apt-get install nghttp2-client")
    tokenizer = demo_model_path() / "tokenizer.json"
    described = json.loads(tokenizer.read_text()) | {"truncation": None, "padding": None}
    ids, _, _ = _core.Tokenizer(json.dumps(described)).encode(TEXT)
    if len(ids) != TOKENS:
        raise SystemExit(f"the text has {len(ids)} tokens, not {TOKENS}: another tokenizer is installed")
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        (work / "tokenizer.json").write_text(json.dumps(described))
        bodies = {
            "text": {"model": "bench", "input": TEXT},
            "base64": {"model": "bench", "input": TEXT, "encoding_format": "base64"},
            "ids": {"model": "bench", "input": [ids]},
        }
        for name, body in bodies.items():
            (work / name).write_text(json.dumps(body))
        turns = []
        for dims in sorted({4, args.dims}):
            port = harness.free_port()
            command = [harness.binary("arlo-instant-upstream"), "--port", str(port), "--server", "transport"]
            command += ["--output", f"embedding:FP32:1,{dims}"]
            stack.enter_context(harness.Program(command, log=work / f"upstream{dims}.log"))
            harness.wait_for_port(port)
            for which, program in (("", None), ("before ", args.before)):
                if which and program is None:
                    continue
                where = work / f"gateway{dims}{which.strip()}"
                started = serving(where, f"127.0.0.1:{port}", work / "tokenizer.json", dims=dims, program=program)
                process, address = stack.enter_context(started)
                turns += [(f"{which}{name} {dims}", process, address, work / name) for name in bodies]
        for _ in range(args.rounds):
            for name, process, address, body in turns:
                result = measure(process, h2load, address, body, connections=args.connections, seconds=args.seconds)
                found.setdefault(name, []).append(result)
    rows = {
        name: {key: statistics.median(each[key] for each in results) for key in ("cpu_us", "rps")}
        for name, results in found.items()
    }
    for name, row in rows.items():
        print(f"{name:>18}: {row['cpu_us']:6.1f} us of CPU a request, {row['rps']:7.0f} requests/s")
    figures = {"cases": rows, "tokens": TOKENS, "words": len(TEXT.split()), "connections": args.connections}
    path = harness.save("http_cpu", "python -m benchmarks.http_cpu " + " ".join(sys.argv[1:]), figures)
    print(f"-> {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
