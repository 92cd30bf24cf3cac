"""CPU of the gateway for a request, in front of an upstream that answers at once, and the latency that it adds.

    python -m benchmarks.load.cpu [CASE...] [--seconds 4] [--rounds 5]

rows         requests of 10 to 60 tokens, padded to 64, over 4 connections, at equal offered rates (Poisson) and at
             saturation (closed loop), compared with nginx `grpc_pass`, which only relays bytes, and the bare upstream
text         the HTTP API: a text of 48 words (64 tokens) as JSON in, the vector as JSON out; h2load sends over 16
             connections. Also base64 out, and token ids in. Vectors have 4 numbers or 384
cascade      a row that a cascade's first stage answers, and one that escalates, compared with a plain model's row
batches      a row in a batch of about eight compared with a row alone, under `arlo serve` with real Triton workers
latency      latency added by the gateway at concurrency 1, p50, before a real Triton worker (emulated engine, 0 ms)

The gateway runs as it ships, with eight instances. Contenders take turns; figures are medians over the rounds, and
CPU is user + system time of the contender's own processes over the requests answered. A rate that the machine does not
carry is omitted and reported.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from arlo import _core
from arlo.compile import demo_model_path
from arlo.replay import ReplayOptions, run_replay
from arlo.traces import parse_lengths, poisson
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness
from benchmarks.harness import Measured
from tests.fakes.gateway import gateway_of

INSTANCES, LONGEST, LABELS = 8, 64, 24
RATES = (1000, 5000, 15000, 0)  # requests/s; 0: saturation
PAYLOADS = [harness.payload(length, seed=length) for length in range(10, 61)]
BATCHED = {"rate": 3000, "rows": 8}
NGINX = """
daemon off;
worker_processes 1;
error_log stderr error;
pid {work}/nginx.pid;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
  upstream worker {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} http2;
    http2_max_concurrent_streams 512;
    keepalive_requests 100000000;
    location / {{ grpc_pass grpc://worker; }}
  }}
}}
"""
TEXT = (
    "The ferry to the Hebridean archipelago leaves the harbour every morning at half past seven, and returns before "
    "dusk unless the wind is stronger than its helmswoman likes; passengers should bring warm clothes, sandwiches, and "
    "thermoses, because notoriously unpredictable weather has cancelled several such crossings since early September."
)
Load = Callable[[float], int | None]  # offers load for so many seconds: requests answered; None: not all were
Turns = Mapping[str, tuple[Measured, Load]]


def in_turns(turns: Turns, args: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of CPU for a request and requests a second of each contender, and its CPU over the first one's."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for _ in range(args.rounds):
        for name, (program, load) in turns.items():
            if load(0.5) is None:
                return {"not_carried": name}
            before = program.cpu_s()
            answered = load(args.seconds)
            if answered is None:
                return {"not_carried": name}
            found[name].append(((program.cpu_s() - before) / answered * 1e6, answered / args.seconds))
    first = next(iter(found.values()))
    figures = {}
    for name, each in found.items():
        us, rps = (statistics.median(values) for values in zip(*each, strict=True))
        ratio = statistics.median(a / b for (a, _), (b, _) in zip(each, first, strict=True))
        figures[name] = {"cpu_us": us, "rps": rps, "ratio": ratio}
        print(f"  {name:24} {us:7.1f} us of CPU a request {rps:8.0f}/s  {ratio:5.2f} times the first", flush=True)
    return figures


def closed(work: Path, port: int) -> Load:
    """A closed loop: as many requests as possible, 32 at a time."""

    def load(seconds: float) -> int:
        flags = ("--concurrency", "32", "--channels", "4", "--seconds", str(seconds))
        report = harness.load(work, port, PAYLOADS, *flags)
        if set(report["codes"]) != {"0"}:
            raise SystemExit(f"requests failed: {report}")
        return int(report["codes"]["0"])

    return load


def paced(work: Path, port: int, rate: int) -> Load:
    """An open loop: requests at a rate, in a Poisson process."""

    def load(seconds: float) -> int | None:
        report = harness.paced_load(work, port, PAYLOADS, "--channels", "4", rate=rate, seconds=seconds)
        return int(report["codes"]["0"]) if set(report["codes"]) == {"0"} else None

    return load


@contextlib.contextmanager
def upstream(work: Path, dims: int) -> Iterator[tuple[Measured, int]]:
    """Run arlo-instant-upstream; yields the process and its port."""
    port = harness.free_port()
    command = [harness.binary("arlo-instant-upstream"), "--port", port, "--output", f"embedding:FP32:1,{dims}"]
    with harness.Program(command, log=work / f"upstream{dims}.log") as program:
        harness.wait_for_port(port)
        yield program, port


def plain(port: int, *, dims: int, model: str = "bench", tokenizer: str = "") -> Any:
    """A deployment of one model on the upstream."""
    about: dict[str, Any] = {"dims": dims, "model": model, "instances": INSTANCES}
    wanted = harness.deployment(f"127.0.0.1:{port}", f"{model}_len{LONGEST}", LONGEST, **about)
    wanted.model.tokenizer = tokenizer.encode()
    return wanted


def rows(work: Path, stack: contextlib.ExitStack, args: argparse.Namespace) -> dict[str, Any]:
    direct, at = stack.enter_context(upstream(work, 384))
    ports: dict[str, tuple[Measured, int]] = {}
    conf, port = work / "nginx.conf", harness.free_port()
    conf.write_text(NGINX.format(work=work, upstream=at, port=port))
    command = [harness.need("nginx", "apt-get install nginx-light"), "-e", "stderr", "-c", conf]
    ports["nginx"] = stack.enter_context(harness.Program(command, log=work / "nginx.log")), port
    harness.wait_for_port(port)
    running = stack.enter_context(harness.gateway(work / "gateway", plain(at, dims=384)))
    ports["gateway"] = Measured(running.pid), harness.port_of(running)
    ports["direct"] = direct, at
    found = {}
    for rate in args.rates:
        print(f"{rate}/s" if rate else "saturated")
        turns = {
            name: (program, paced(work, port, rate) if rate else closed(work, port))
            for name, (program, port) in ports.items()
        }
        found[str(rate or "saturated")] = figures = in_turns(turns, args)
        if "not_carried" in figures:
            print(f"  more than this machine carries through {figures['not_carried']}")
    return found


def text(work: Path, stack: contextlib.ExitStack, args: argparse.Namespace) -> dict[str, Any]:
    h2load = harness.need("h2load", "apt-get install nghttp2-client")
    about = json.loads((demo_model_path() / "tokenizer.json").read_text()) | {"truncation": None, "padding": None}
    ids, _, _ = _core.Tokenizer(json.dumps(about)).encode(TEXT)
    if len(ids) != LONGEST:
        raise SystemExit(f"the text has {len(ids)} tokens, not {LONGEST}: another tokenizer is installed")
    inputs: dict[str, dict[str, Any]] = {
        "text": {"input": TEXT},
        "base64": {"input": TEXT, "encoding_format": "base64"},
        "ids": {"input": [ids]},
    }

    def asking(address: str, body: Path) -> Load:
        def load(seconds: float) -> int:
            command = [h2load, "--h1", "-c", "16", "-D", str(max(1, round(seconds))), "-d", str(body)]
            command += ["-H", "content-type: application/json", f"http://{address}/v1/embeddings"]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            good = re.search(r"status codes: (\d+) 2xx", said)
            if good is None or int(good[1]) == 0 or re.search(r"([1-9]\d*) [345]xx", said):
                raise SystemExit(f"requests failed: {said}")
            return int(good[1])

        return load

    turns: dict[str, tuple[Measured, Load]] = {}
    for dims in (384, 4):
        _, at = stack.enter_context(upstream(work, dims))
        wanted = plain(at, dims=dims, tokenizer=json.dumps(about))
        running = stack.enter_context(harness.gateway(work / f"gateway{dims}", wanted, threads=1))
        for name, body in inputs.items():
            path = work / f"{name}.json"
            path.write_text(json.dumps({"model": "bench", **body}))
            turns[f"{name}, {dims} numbers"] = Measured(running.pid), asking(running.api, path)
    return in_turns(turns, args)


def cascade_of(port: int, threshold: float) -> Any:
    """Two models on the upstream; the second answers rows whose confidence is below `threshold`."""
    whole, second = (plain(port, dims=LABELS, model=model) for model in ("first", "second"))
    for deployment, model in ((whole, "first"), (second, "second")):
        deployment.runtimes[0].model = model
        for instance in deployment.instances:
            instance.id = f"{model}.{instance.id}"
    whole.more_models.append(second.model)
    whole.runtimes.extend(second.runtimes)
    whole.instances.extend(second.instances)
    labels = [str(i) for i in range(LABELS)]
    about = {"slo_ms": 1500, "default_timeout_ms": 60_000, "logits": "embedding", "point": "only"}
    cascade = whole.cascades.add(name="bench", labels=labels, **about)
    for model in ("first", "second"):
        stage = cascade.stages.add(model=model, score="max", over="min", weight=1.0)
        stage.calibrator.kind, stage.calibrator.t = "temperature", 1.3
    point = cascade.points.add(name="only", ensemble="none")
    point.prices.add().rules.add(rule="hard").below.add(length=512, value=threshold)
    return whole


def cascade(work: Path, stack: contextlib.ExitStack, args: argparse.Namespace) -> dict[str, Any]:
    _, at = stack.enter_context(upstream(work, LABELS))
    wanted = {"plain": plain(at, dims=LABELS), "exits": cascade_of(at, 0.0), "goes on": cascade_of(at, 1.0001)}
    turns: dict[str, tuple[Measured, Load]] = {}
    for name, deployment in wanted.items():
        running = stack.enter_context(harness.gateway(work / name.replace(" ", "-"), deployment))
        turns[name] = Measured(running.pid), closed(work, harness.port_of(running))
    return in_turns(turns, args)


def batches(work: Path, stack: contextlib.ExitStack, args: argparse.Namespace) -> dict[str, Any]:
    def sending(endpoint: str) -> Load:
        def load(seconds: float) -> int:
            trace = poisson(BATCHED["rate"], seconds, parse_lengths(f"uniform:10:{LONGEST - 4}"), 1)
            summary = run_replay(trace, ReplayOptions(endpoint=endpoint, slo_ms=1000)).summary
            if summary.answered != summary.requests:
                raise SystemExit(f"{summary.requests - summary.answered} of {summary.requests} were not answered")
            return int(summary.answered)

        return load

    turns: dict[str, tuple[Measured, Load]] = {}
    pages: dict[str, int] = {}
    for name, batching in (("alone", "one"), ("in batches", "deadline")):
        (folder := work / batching).mkdir()
        write_emulated_repository(
            folder / "repository",
            model="bench",
            max_lengths=[LONGEST],
            latency_ms=[1000 * BATCHED["rows"] / BATCHED["rate"] if batching == "deadline" else 0.0],
            max_batch=2 * BATCHED["rows"],
            batch_growth=0.0,
        )
        settings = {"deployment": {"runtimes": "bundle"}, "dispatch": {"batching": batching}}
        program, endpoint, pages[name] = stack.enter_context(harness.serving(folder, slo_ms=1000, settings=settings))
        comm = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in program.pids()}
        pid = next(pid for pid, said in comm.items() if said.startswith("arlo-gateway"))
        turns[name] = Measured(pid), sending(endpoint)
    found = in_turns(turns, args)
    for name, port in pages.items():
        sent = sum(harness.metric(port, "arlo_level_dispatched_total"))
        found[name]["rows_a_batch"] = sent / sum(harness.metric(port, "arlo_batches_total"))
        print(f"  {name:24} {found[name]['rows_a_batch']:.1f} rows a batch")
    return found


def latency(work: Path, _: contextlib.ExitStack, args: argparse.Namespace) -> dict[str, Any]:
    runtime = f"bench_len{LONGEST}"

    def p50_us(port: int, model: str) -> float:
        flags = ("--concurrency", "1", "--channels", "1", "--requests", "3000")
        harness.load(work, port, [harness.payload(LONGEST, model=model)], *flags)
        records = np.load(work / "records.npy")
        return float(np.median(records["done_us"] - records["sent_us"]))

    async def run() -> dict[str, Any]:
        write_emulated_repository(
            work / "repository", model="bench", max_lengths=[LONGEST], latency_ms=[0.0], pooled_dims=384
        )
        found = []
        async with LocalPool(work / "repository", workers=1, run_dir=work / "run") as pool:
            await pool.load("w0", runtime)
            endpoint = (await pool.workers())[0].endpoint
            wanted = harness.deployment(endpoint, runtime, LONGEST, dims=384)
            async with gateway_of(work, wanted, {"log_level": "warning"}) as gateway:
                for _ in range(args.rounds):
                    direct = await asyncio.to_thread(p50_us, int(endpoint.rpartition(":")[2]), runtime)
                    through = await asyncio.to_thread(p50_us, harness.port_of(gateway), "bench")
                    found.append((direct, through - direct))
        direct, added = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"  direct p50 {direct:.0f} us, the gateway adds {added:.0f} us")
        return {"direct_p50_us": direct, "added_p50_us": added, "rounds": [each for _, each in found]}

    return asyncio.run(run())


CASES = {each.__name__: each for each in (rows, text, cascade, batches, latency)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (default: 4)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rates", type=int, nargs="+", default=list(RATES), help="of `rows`; 0: saturation")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(CASES):
        parser.error(f"no case {unknown.pop()!r}: there are {', '.join(CASES)}")
    for name in args.cases or CASES:
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            figures = CASES[name](Path(folder), stack, args)
        command = " ".join(["python -m benchmarks.load.cpu", *sys.argv[1:]])
        print(f"-> {harness.save(f'cpu_{name}', command, {'figures': figures})}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
