"""Attacks on the gateway's data port, and what a light client that sends meanwhile sees of them.

Two real Triton workers with emulated engines of 2 ms, 256 KB an answer where a client asks for its tokens. For each
attack of tests/fakes/attacks a gateway is started anew; a light client sends 100 requests/s of one row with a time-out
of 10 s, for some seconds in quiet, during the attack, and after it. The attack is one Python process that does what one
core allows. `nothing` is no attack but takes its core: the light client shares the machine with it. Figures:

    p50, p99        of the light client in ms, for the three times
    failed          its requests that were not answered well
    newcomers       one request on a new connection, twice a second: answered of asked
    rss_mb          of the gateway: before, at its peak, 10 s after the end of the attack
    descriptors     the same
    offender        what it met: ends of its connections, answers to its calls, seconds in which nothing was taken

`taken_answers` is none either: well-behaved clients that ask for as much as those of `unread_answers`.

Held: every request of the light client and of newcomers answered, its p99 at most doubled (against quiet, `nothing`, or
the attack's own control, whichever is most), the memory back to within `KEPT_MB`, at its peak within the limit of the
configuration (`limits.memory_bytes`) and `BESIDE_MB`, the offender refused where it must be, all processes alive, and
the gateway ended when asked to.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from arlo.clock import monotonic_s
from arlo.replay.plan import write_plan
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import write_emulated_repository
from benchmarks import harness
from tests.fakes.attacks.hit import was_refused
from tests.fakes.attacks.run import ATTACKS, asked_anew, run_attack
from tests.fakes.gateway import Gateway, start_gateway
from tests.fakes.triton_workers import Workers

LENGTH, TOKEN_DIMS, LATENCY_MS = 128, 512, 2.0  # 128 x 512 x 4 bytes: 256 KB
RATE, TIMEOUT_S, QUIET_S, BACK_S = 100, 10.0, 5.0, 10.0
KEPT_MB, BESIDE_MB = 64, 150  # beside what the limit counts: connections, frames on their way, the allocator's
UNLIMITED_MB = 256  # where the configuration has no limit of memory: of answers that wait
NOTHING = "nothing"


class Watch:
    """The gateway's memory and descriptors, looked at fifty times a second."""

    def __init__(self, pid: int) -> None:
        self.peak_mb, self.peak_fds = 0.0, 0
        self._pid = pid

    def now(self) -> tuple[float, int]:
        """MB and descriptors; zeros when it has ended."""
        try:
            return harness.Measured(self._pid).rss_mb(), len(os.listdir(f"/proc/{self._pid}/fd"))  # noqa: PTH208  # a Path each is slow
        except (OSError, StopIteration):
            return 0.0, 0

    async def run(self) -> None:
        while True:
            mb, fds = self.now()
            self.peak_mb, self.peak_fds = max(self.peak_mb, mb), max(self.peak_fds, fds)
            await asyncio.sleep(0.02)


class Newcomers:
    """A request on a new connection, twice a second."""

    def __init__(self, address: str, body: bytes) -> None:
        self.asked, self.answered, self.longest_s = 0, 0, 0.0
        self._address, self._body = address, body

    async def run(self) -> None:
        while True:
            began_s = monotonic_s()
            how = await asyncio.to_thread(asked_anew, self._address, self._body, TIMEOUT_S)
            self.asked += 1
            self.answered += how == "grpc-status 0"
            self.longest_s = max(self.longest_s, monotonic_s() - began_s)
            await asyncio.sleep(0.5)


class LightClient:
    """arlo-loadgen at a steady rate, for so many seconds; `began_s`: its first moment."""

    def __init__(self, work: Path, port: int, body: bytes, seconds: float) -> None:
        self.began_s = 0.0
        self._records = work / "records.npy"
        plan = work / "plan.bin"
        at_us = (np.arange(int(RATE * seconds)) * 1e6 / RATE).astype(np.int64)
        write_plan(plan, [body], at_us, np.zeros(len(at_us), np.uint32), timeout_us=int(TIMEOUT_S * 1e6))
        self._command = [
            *(str(harness.binary("arlo-loadgen")), "open", "--target", f"127.0.0.1:{port}", "--plan", str(plan)),
            *("--records", str(self._records), "--progress-s", "0.2", "--channels", "1", "--drain-s", "15"),
        ]

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        first = json.loads(await self._process.stdout.readline())
        self.began_s = monotonic_s() - first["t_s"]

    async def records(self) -> Any:
        await self._process.communicate()
        return np.load(self._records)


def seen(records: Any, begin_s: float, end_s: float) -> dict[str, Any]:
    """What the light client saw of its requests of this time."""
    at_s = records["scheduled_us"] / 1e6
    mine = records[(at_s >= begin_s) & (at_s < end_s)]
    good = mine["code"] == 0
    taken_ms = (mine["done_us"] - mine["scheduled_us"])[good] / 1e3
    p50, p99 = (float(np.percentile(taken_ms, q)) if len(taken_ms) else float("nan") for q in (50, 99))
    codes = {str(code): int((mine["code"] == code).sum()) for code in np.unique(mine["code"])}
    return {"asked": len(mine), "failed": int((~good).sum()), "codes": codes, "p50_ms": p50, "p99_ms": p99}


async def take_core(seconds: float) -> dict[str, Any]:
    """No attack: a process that only computes."""
    said = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    await (await asyncio.create_subprocess_exec(sys.executable, "-c", said)).wait()
    return {"cut_off": False, "ends": {}, "answers": {}, "good_asked": 0, "good_answered": 0}


async def end(gateway: Gateway) -> bool:
    """Whether it ended by itself when asked to."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(gateway.pid, signal.SIGTERM)
    clean = True
    try:
        async with asyncio.timeout(15):
            clean = await gateway.process.wait() == 0
    except TimeoutError:
        gateway.process.kill()
        await gateway.process.wait()
        clean = False
    await gateway.close()
    return clean


async def one(work: Path, workers: Workers, name: str, seconds: float) -> dict[str, Any]:
    """All figures of one attack."""
    small, wide = harness.payload(32), wide_request()
    settings = {"log_level": "warning", "drain_delay_ms": 0, "drain_timeout_ms": 5000}
    gateway = await start_gateway(work, settings, program=harness.binary("arlo-gateway"))
    deployment = workers.deployment("bench", [(0, LENGTH), (1, LENGTH)], slo_ms=1500, inflight_limit=2)
    await gateway.apply(deployment)
    attack = ATTACKS.get(name)
    if attack is not None and attack.descriptors:
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (attack.descriptors, attack.descriptors))
    pids = [await workers.pid(worker) for worker in range(len(workers.endpoints))]
    watch, newcomers = Watch(gateway.pid), Newcomers(gateway.grpc, small)
    client = LightClient(work, harness.port_of(gateway), small, 2 * QUIET_S + 2 * seconds + 5)
    await client.start()
    await asyncio.sleep(QUIET_S)
    before = watch.now()
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(newcomers.run())]
    begin_s = monotonic_s()
    if name == NOTHING:
        report = await take_core(seconds)
    else:
        report = await run_attack(name, gateway.grpc, small, wide, seconds=seconds, scale=1.0, most_s=2 * seconds + 5)
    end_s = monotonic_s()
    await asyncio.sleep(BACK_S)
    after = watch.now()
    for task in tasks:
        task.cancel()
    again = await asyncio.to_thread(asked_anew, gateway.grpc, small, TIMEOUT_S)
    records = await client.records()
    alive = gateway.process.returncode is None
    lives = [await workers.pid(worker) for worker in range(len(pids))] == pids
    clean = await end(gateway)
    began_s = client.began_s
    return {
        "quiet": seen(records, 0.5, begin_s - began_s),
        "during": seen(records, begin_s - began_s, end_s - began_s),
        "after": seen(records, end_s - began_s, float("inf")),
        "attack_s": end_s - begin_s,
        "newcomers": {
            "asked": newcomers.asked + 1,
            "answered": newcomers.answered + (again == "grpc-status 0"),
            "longest_s": newcomers.longest_s,
            "after_answered": again == "grpc-status 0",
        },
        "rss_mb": {"before": before[0], "peak": watch.peak_mb, "after": after[0]},
        "memory_limit_mb": limit_mb(work / "gateway.json"),
        "descriptors": {"before": before[1], "peak": watch.peak_fds, "after": after[1]},
        "gateway_alive": alive,
        "gateway_ended_well": clean,
        "workers_alive": lives,
        "offender": report,
    }


def limit_mb(configuration: Path) -> float:
    limits = json.loads(configuration.read_text()).get("limits", {})
    return float(limits.get("memory_bytes", UNLIMITED_MB << 20)) / (1 << 20)


def broken(name: str, figures: dict[str, Any], others: dict[str, Any]) -> list[str]:
    """What of the bar was not held. `others`: figures of what ran before, the controls among them."""
    attack = ATTACKS.get(name)
    controls = [others[each]["during"]["p99_ms"] for each in (NOTHING, attack and attack.control) if each in others]
    bar_ms = 2 * max(figures["quiet"]["p99_ms"], *controls, 0.0)
    failed = sum(figures[when]["failed"] for when in ("quiet", "during", "after"))
    came, rss, offender = figures["newcomers"], figures["rss_mb"], figures["offender"]
    full = attack is not None and attack.descriptors is not None  # then there is no room for newcomers meanwhile
    wrong = {
        f"{failed} requests of the light client failed": failed > 0,
        f"p99 {figures['during']['p99_ms']:.1f} ms, bar {bar_ms:.1f}": not figures["during"]["p99_ms"] <= bar_ms,
        f"{came['asked'] - came['answered']} of {came['asked']} newcomers failed": (
            came["answered"] < came["asked"] and not full
        ),
        "nobody is accepted any more": not came["after_answered"],
        f"{rss['after'] - rss['before']:.0f} MB kept": rss["after"] - rss["before"] > KEPT_MB,
        f"{rss['peak'] - rss['before']:.0f} MB more at the peak": (
            rss["peak"] - rss["before"] > figures["memory_limit_mb"] + BESIDE_MB
        ),
        "the offender was not refused": attack is not None and attack.refused and not was_refused(offender),
        "good calls of the offender's connection failed": offender["good_answered"] < offender["good_asked"],
        "the gateway died": not figures["gateway_alive"],
        "a worker died": not figures["workers_alive"],
        "the gateway did not end when asked": figures["gateway_alive"] and not figures["gateway_ended_well"],
    }
    return [what for what, is_so in wrong.items() if is_so]


def line(name: str, figures: dict[str, Any]) -> str:
    times = " ".join(
        f"{figures[when]['p50_ms']:6.1f}/{figures[when]['p99_ms']:8.1f}" for when in ("quiet", "during", "after")
    )
    rss = "/".join(f"{figures['rss_mb'][when]:.0f}" for when in ("before", "peak", "after"))
    offender = figures["offender"]
    met = {**offender["ends"], **offender["answers"]}
    most = ", ".join(f"{count} {how}" for how, count in sorted(met.items(), key=lambda item: -item[1])[:3])
    verdict = "; ".join(figures["broken"]) or "held"
    return f"{name:28} {times}  {rss:14} {verdict}  [{'cut off; ' if offender['cut_off'] else ''}{most}]"


def wide_request() -> bytes:
    """All tokens of a row are asked for; typed and without a mask, so that it is of some hundred bytes."""
    request = service_pb2.ModelInferRequest(model_name="bench")
    tensor = request.inputs.add(name="input_ids", datatype="INT64", shape=(1, LENGTH))
    tensor.contents.int64_contents.extend([1] * LENGTH)
    request.outputs.add(name="last_hidden_state")
    return bytes(request.SerializeToString())


@contextlib.asynccontextmanager
async def two_workers(work: Path) -> AsyncIterator[Workers]:
    repository = work / "repository"
    manifest = write_emulated_repository(
        repository, model="bench", max_lengths=[LENGTH], latency_ms=[LATENCY_MS], token_dims=TOKEN_DIMS
    )
    async with LocalPool(repository, workers=2, run_dir=work / "run", metrics=False) as pool:
        workers = Workers(pool, {"bench": manifest})
        await workers.start()
        yield workers
        await workers.close()


async def run(names: list[str], seconds: float) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        async with two_workers(work) as workers:
            head = "p50/p99 in ms, quiet, during, after"
            print(f"{'attack':28} {head:47}  rss before/peak/after (MB), verdict [the offender met]", flush=True)
            for name in names:
                await workers.whole()
                figures = await one(work / name, workers, name, seconds)
                results[name] = figures
                figures["broken"] = broken(name, figures, results)
                print(line(name, figures), flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[NOTHING, *ATTACKS], metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack (default 10)")
    parser.add_argument("--json", type=Path, help="write the figures there instead of to results/attacks.json")
    args = parser.parse_args()
    began_s = time.monotonic()
    attacks = asyncio.run(run(args.only or [NOTHING, *ATTACKS], args.seconds))
    figures = {
        "seconds": args.seconds,
        "held": sum(not each["broken"] for each in attacks.values()),
        "of": len(attacks),
        "took_s": round(time.monotonic() - began_s),
        "attacks": attacks,
    }
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    elif args.only is None:
        path = harness.save("attacks", "python -m benchmarks.attacks " + " ".join(sys.argv[1:]), figures)
        print(f"-> {path}")
    print(f"held: {figures['held']} of {figures['of']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
