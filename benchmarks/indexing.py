"""Clients that index, and clients that ask, against one running server: who is answered, and what is computed in vain.

`--indexing` clients send `--texts` texts of `--words` words a request, one request after another, and retry a refused
one after its Retry-After, as clients' packages do. One client beside them asks for single texts of 12 words at
`--rps`. Start the server first (`make serve`, `arlo up`), and give its address. Figures:

    statuses        answers to the indexing requests, by HTTP status
    rows_per_s      rows of theirs that were answered
    wasted          share of the dispatched rows whose request was not answered
    on_time         share of the single texts that were answered within --slo-ms, as the client sees it
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import re
import sys
import time
from typing import Any

import httpx

WORDS = ("harbour", "ferry", "morning", "wind", "bread", "crossing", "weather", "island", "archive", "station")
DISPATCHED = re.compile(r"^arlo_level_dispatched_total\{[^}]*\} (\S+)", re.MULTILINE)


def text(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


class Run:
    """One run against a server."""

    def __init__(self, args: argparse.Namespace, http: httpx.AsyncClient) -> None:
        self.args, self.http = args, http
        self.statuses: collections.Counter[int] = collections.Counter()
        self.rows = 0
        self.single: list[float] = []  # ms; infinite: not answered
        self.until = 0.0

    async def dispatched(self) -> float:
        return sum(map(float, DISPATCHED.findall((await self.http.get("/metrics")).text)))

    async def ask(self, texts: int, words: int, timeout_ms: int | None = None) -> httpx.Response:
        body = {"input": [text(words) for _ in range(texts)], "model": self.args.model}
        headers = {} if timeout_ms is None else {"x-request-timeout-ms": str(timeout_ms)}
        return await self.http.post("/v1/embeddings", json=body, headers=headers)

    async def index(self) -> None:
        while time.monotonic() < self.until:
            answer = await self.ask(self.args.texts, self.args.words, self.args.timeout_ms)
            self.statuses[answer.status_code] += 1
            if answer.status_code == 200:
                self.rows += self.args.texts
            else:
                await asyncio.sleep(float(answer.headers.get("retry-after", 1)))

    async def single_text(self) -> None:
        began = time.monotonic()
        answer = await self.ask(1, 12)
        took_ms = (time.monotonic() - began) * 1000
        self.single.append(took_ms if answer.status_code == 200 else float("inf"))

    async def ask_beside(self) -> None:
        asked = []
        while time.monotonic() < self.until:
            asked.append(asyncio.create_task(self.single_text()))
            await asyncio.sleep(random.expovariate(self.args.rps))
        await asyncio.gather(*asked)

    async def measure(self) -> dict[str, Any]:
        before, began = await self.dispatched(), time.monotonic()
        self.until = began + self.args.seconds
        await asyncio.gather(self.ask_beside(), *(self.index() for _ in range(self.args.indexing)))
        took_s = time.monotonic() - began
        in_time = sum(each <= self.args.slo_ms for each in self.single)
        answered = self.rows + sum(each < float("inf") for each in self.single)
        dispatched = await self.dispatched() - before
        return {
            "statuses": dict(sorted(self.statuses.items())),
            "rows_per_s": round(self.rows / took_s, 1),
            "wasted": round(1 - answered / max(dispatched, 1), 4),
            "on_time": round(in_time / max(len(self.single), 1), 4),
            "single_p50_ms": round(sorted(self.single)[len(self.single) // 2], 1) if self.single else None,
        }


async def run(args: argparse.Namespace) -> dict[str, Any]:
    random.seed(1)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=args.url, timeout=600, limits=limits) as http:
        return await Run(args, http).measure()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--indexing", type=int, default=4, help="clients that index")
    parser.add_argument("--texts", type=int, default=1000, help="of one of their requests")
    parser.add_argument("--words", type=int, default=20, help="of one of their texts")
    parser.add_argument("--timeout-ms", type=int, help="that they say (default: none)")
    parser.add_argument("--rps", type=float, default=5, help="single texts beside them, a second")
    parser.add_argument("--slo-ms", type=float, default=250)
    parser.add_argument("--seconds", type=float, default=60)
    print(json.dumps(asyncio.run(run(parser.parse_args()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
