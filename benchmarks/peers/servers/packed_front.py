"""A front of packed_fifo.py: takes requests over gRPC and HTTP, and passes their rows to the engine's process.

gRPC: ModelInfer of KServe v2, `input_ids` and `attention_mask` INT64 [rows, tokens] -> `sentence_embedding` FP32
[rows, dims], with the parameters `queue_us` and `execute_us`. HTTP: OpenAI-compatible POST /v1/embeddings.
Started by packed_fifo.py, which gives it its end of a socket pair. It ends when the other end is closed.

Messages, pickled: to the engine (numbers, lengths, ids of all rows, numbers whose clients have left); from it first
`Facts` as a dictionary, then (numbers, refusal or None, its reason or the vectors, queue_us, execute_us), None to stop.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc import aio
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from benchmarks.peers.servers.packed_rule import Facts, Ids, Refusal

GRACE_S = 2.0  # for requests in progress when the server stops
MOST_BYTES = 16 << 20  # of an HTTP request
SERVICE = "inference.GRPCInferenceService"
STATUS = {  # in gRPC and in HTTP
    Refusal.FULL: (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    Refusal.INVALID: (grpc.StatusCode.INVALID_ARGUMENT, 400),
    Refusal.FAILED: (grpc.StatusCode.INTERNAL, 500),
}


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, refusal: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.status, self.http = STATUS[refusal]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A row's vector, float32[dims], and where its time went."""

    vector: NDArray[np.float32]
    queue_us: int
    execute_us: int


class Engine:
    """The engine as its fronts see it. Used from one event loop.

    Rows that come in one turn of the loop travel in one message.
    """

    def __init__(self, pipe: Connection, facts: Facts) -> None:
        self.facts = facts
        self.over = asyncio.Event()  # the server stops, or the engine is gone
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer | RefusedError]] = {}
        self._asked: list[tuple[int, Ids]] = []
        self._left: list[int] = []
        self._flushing = False
        self._loop.add_reader(pipe.fileno(), self._read)

    async def answers(self, rows: list[Ids]) -> list[Answer]:
        """Answers in the order of `rows`. RefusedError for the first row that has none.

        When the caller is cancelled or refused, the engine drops the rows that still wait.
        """
        for ids in rows:
            self._check(ids)
        numbers = [self._ask(ids) for ids in rows]
        try:
            found = []
            for future in [self._waiting[number] for number in numbers]:
                answer = await future
                if isinstance(answer, RefusedError):
                    raise answer
                found.append(answer)
            return found
        finally:
            self._left += [number for number in numbers if self._waiting.pop(number, None) is not None]
            if self._left:
                self._flush_soon()

    def _check(self, ids: Ids) -> None:
        if not 0 < len(ids) <= self.facts.longest:
            raise RefusedError(
                Refusal.INVALID, f"a row has {len(ids)} tokens; the model takes 1 to {self.facts.longest}"
            )
        if ids.min() < 0 or ids.max() >= self.facts.vocabulary:
            raise RefusedError(Refusal.INVALID, f"a token id is outside the vocabulary of {self.facts.vocabulary}")

    def _ask(self, ids: Ids) -> int:
        number = next(self._numbers)
        self._waiting[number] = self._loop.create_future()
        self._asked.append((number, ids))
        self._flush_soon()
        return number

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        numbers = [number for number, _ in self._asked]
        lengths = [len(ids) for _, ids in self._asked]
        ids = np.concatenate([ids for _, ids in self._asked]) if self._asked else np.empty(0, np.int64)
        left, self._left, self._asked = self._left, [], []
        if not self._pipe.closed:
            self._pipe.send((numbers, lengths, ids, left))  # the engine's process always reads

    def _read(self) -> None:
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
            message = None
        if message is None:
            self.over.set()
            return
        numbers, refusal, found, queue_us, execute_us = message
        for index, number in enumerate(numbers):
            future = self._waiting.pop(number, None)
            if future is None or future.done():
                continue
            if refusal is not None:
                future.set_result(RefusedError(refusal, found))
            else:
                future.set_result(Answer(found[index], queue_us[index], execute_us))


def rows_of(request: Any) -> list[Ids]:
    """The rows of a ModelInferRequest, without their padding. RefusedError when it is another model's."""
    tensors: dict[str, Ids] = {}
    for index, tensor in enumerate(request.inputs):
        if tensor.datatype != "INT64" or len(tensor.shape) != 2:
            raise RefusedError(Refusal.INVALID, f"input {tensor.name} must be INT64 [rows, tokens]")
        raw = request.raw_input_contents
        flat = np.frombuffer(raw[index], "<i8") if raw else np.array(tensor.contents.int64_contents, np.int64)
        if flat.size != tensor.shape[0] * tensor.shape[1]:
            raise RefusedError(Refusal.INVALID, f"input {tensor.name} has {flat.size} values, not those of its shape")
        tensors[tensor.name] = flat.reshape(tensor.shape)
    ids, mask, types = (tensors.pop(name, None) for name in ("input_ids", "attention_mask", "token_type_ids"))
    if ids is None or tensors or (types is not None and types.any()):
        raise RefusedError(Refusal.INVALID, "send input_ids and attention_mask; token_type_ids must be 0")
    if mask is None or mask.all():
        return list(ids)
    if mask.shape != ids.shape:
        raise RefusedError(Refusal.INVALID, "attention_mask must have the shape of input_ids")
    return [row[real.astype(bool)] for row, real in zip(ids, mask, strict=True)]


class Grpc:
    """KServe v2 over gRPC."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def infer(self, request: Any, context: Any) -> Any:
        """ModelInfer."""
        if any(output.name != "sentence_embedding" for output in request.outputs):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the only output is sentence_embedding")
        try:
            answers = await self._engine.answers(rows_of(request))
        except RefusedError as error:
            await context.abort(error.status, str(error))
        response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        response.outputs.add(name="sentence_embedding", datatype="FP32", shape=(len(answers), self._engine.facts.dims))
        response.raw_output_contents.append(b"".join(answer.vector.tobytes() for answer in answers))
        response.parameters["queue_us"].int64_param = max(answer.queue_us for answer in answers)
        response.parameters["execute_us"].int64_param = max(answer.execute_us for answer in answers)
        return response

    async def metadata(self, request: Any, _: Any) -> Any:
        """ModelMetadata."""
        response = service_pb2.ModelMetadataResponse(name=request.name, platform="packed_fifo")
        for name in ("input_ids", "attention_mask"):
            response.inputs.add(name=name, datatype="INT64", shape=(-1, -1))
        response.outputs.add(name="sentence_embedding", datatype="FP32", shape=(-1, self._engine.facts.dims))
        return response

    async def start(self, address: str) -> Any:
        """The server, listening on an address that other fronts share."""

        async def ready(_: Any, __: Any) -> Any:
            return service_pb2.ServerReadyResponse(ready=True)

        def handler(method: Any, name: str) -> Any:
            asked, answered = getattr(service_pb2, f"{name}Request"), getattr(service_pb2, f"{name}Response")
            return grpc.unary_unary_rpc_method_handler(method, asked.FromString, answered.SerializeToString)

        methods = {"ModelInfer": self.infer, "ModelMetadata": self.metadata, "ServerReady": ready}
        server = aio.server(options=[("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", -1)])
        handlers = {name: handler(method, name) for name, method in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_insecure_port(address)
        await server.start()
        return server


async def start_http(engine: Engine, host: str, port: int, tokenizer_file: Path, most_tokens: int) -> Any:
    """OpenAI's embeddings on a port that other fronts share; texts are cut at `most_tokens`."""
    from aiohttp import web
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(min(most_tokens or engine.facts.longest, engine.facts.longest))

    async def embeddings(request: web.Request) -> web.Response:
        try:
            asked = await request.json()
            given = asked["input"]
            texts = [given] if isinstance(given, str) else list(given)
            encoded = [tokenizer.encode(text).ids for text in texts]
        except (ValueError, TypeError, KeyError):
            return web.json_response({"error": {"message": "send a text, or a list of texts, as `input`"}}, status=400)
        try:
            answers = await engine.answers([np.array(ids, np.int64) for ids in encoded])
        except RefusedError as error:
            return web.json_response({"error": {"message": str(error)}}, status=error.http)
        vectors = enumerate(answer.vector.tolist() for answer in answers)
        data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in vectors]
        tokens = sum(map(len, encoded))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        body = {"object": "list", "model": asked.get("model", ""), "data": data, "usage": usage}
        return web.Response(text=json.dumps(body), content_type="application/json")

    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_post("/v1/embeddings", embeddings)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=GRACE_S)
    await runner.setup()
    await web.TCPSite(runner, host, port, reuse_port=True).start()
    return runner


async def serve(args: argparse.Namespace, pipe: Connection, facts: Facts) -> None:
    """Until the engine's process stops it or is gone."""
    engine = Engine(pipe, facts)
    server = await Grpc(engine).start(f"{args.host}:{args.grpc_port}")
    http = (
        await start_http(engine, args.host, args.http_port, args.tokenizer, args.max_tokens) if args.tokenizer else None
    )
    pipe.send(([], [], np.empty(0, np.int64), []))  # it listens
    await engine.over.wait()
    await asyncio.gather(server.stop(GRACE_S), *([http.cleanup()] if http else []))


def main() -> None:
    """Connect to the engine's process, wait for its model, and serve."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--pipe", type=int, required=True, help="descriptor of the socket to the engine's process")
    parse.add_argument("--host", required=True)
    parse.add_argument("--grpc-port", type=int, required=True)
    parse.add_argument("--http-port", type=int, required=True)
    parse.add_argument("--tokenizer", type=Path, help="tokenizer.json; without it there is no HTTP")
    parse.add_argument("--max-tokens", type=int, required=True, help="of a text; 0: what the model takes")
    args = parse.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine's process says when to stop
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(args.pipe, False)
    with Connection(args.pipe) as pipe:
        try:
            facts = Facts(**pipe.recv())
        except EOFError:  # it was stopped before it had a model
            return
        asyncio.run(serve(args, pipe, facts))


if __name__ == "__main__":
    main()
