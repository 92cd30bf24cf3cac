"""packed_fifo: its batching rule, the engine between its fronts, and the whole server on a model with drawn weights."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from benchmarks.peers.servers.packed_fifo import OUTPUT, ROOT, Server
from benchmarks.peers.servers.packed_front import RefusedError, rows_of
from benchmarks.peers.servers.packed_rule import Ids, PackedFifo, Refusal, Row

WAIT_S = 60.0


def row(number: int, tokens: int, front: int = 0) -> Row:
    return Row((front, number), np.full(tokens, number, np.int64), arrived_s=0.0)


def rule(*lengths: int, budget: int = 100, most_rows: int = 8, bound: int = 100) -> PackedFifo:
    """A queue with rows 0, 1, ... of these lengths."""
    queue = PackedFifo(budget=budget, most_rows=most_rows, bound=bound)
    for number, tokens in enumerate(lengths):
        assert queue.add(row(number, tokens)) is None
    return queue


def numbers(batch: Sequence[Row]) -> list[int]:
    return [each.key[1] for each in batch]


class TestRule:
    def test_rows_leave_in_order_while_the_budget_holds(self) -> None:
        queue = rule(60, 40, 1, 99, 1, 50)
        assert [numbers(queue.take()) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], []]

    def test_a_short_row_does_not_overtake_a_long_one(self) -> None:
        queue = rule(60, 90, 10)
        assert [numbers(queue.take()) for _ in range(2)] == [[0], [1, 2]]

    def test_a_batch_has_no_more_rows_than_it_may(self) -> None:
        queue = rule(*[1] * 7, most_rows=3)
        assert [numbers(queue.take()) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]

    def test_a_row_as_long_as_the_budget_goes_alone_and_a_longer_one_is_refused(self) -> None:
        queue = rule(1, 100, 1)
        refusal = queue.add(row(3, 101))
        assert refusal is not None
        assert refusal == (Refusal.INVALID, "the row has 101 tokens, a batch takes 100")
        assert [numbers(queue.take()) for _ in range(4)] == [[0], [1], [2], []]
        assert queue.refused == 1

    def test_rows_of_clients_that_left_are_dropped_when_their_turn_comes(self) -> None:
        queue = rule(50, 50, 50, 50)
        queue.leave((0, 0))
        queue.leave((0, 2))
        queue.leave((1, 1))  # another front's
        assert queue.dropped == 0
        assert numbers(queue.take()) == [1, 3]
        assert queue.dropped == 2

    def test_all_clients_may_have_left(self) -> None:
        queue = rule(50, 50)
        queue.leave((0, 0))
        queue.leave((0, 1))
        assert queue.take() == []

    def test_no_more_rows_wait_or_are_computed_than_the_bound(self) -> None:
        queue = rule(1, 1, 1, bound=3, most_rows=2)
        refusal = queue.add(row(3, 1))
        assert refusal is not None
        assert refusal[0] is Refusal.FULL
        batch = queue.take()
        assert queue.add(row(4, 1)) is not None  # computed rows count
        queue.finish(batch)
        assert [queue.add(row(number, 1)) is None for number in (5, 6, 7)] == [True, True, False]
        queue.leave((0, 2))  # the place of a client that left is free at once
        assert queue.add(row(8, 1)) is None
        assert numbers(queue.take()) == [5, 6]
        assert queue.refused == 3


class Gated:
    """A session whose runs wait to be let go; a row's vector is its first id. Ids of 13 are not in the vocabulary."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.runs: list[list[int]] = []

    def run_packed(self, _: Sequence[str], ids: Ids, offsets: NDArray[np.int32]) -> list[NDArray[np.float32]]:
        first = ids[offsets[:-1]]
        self.runs.append(first.tolist())
        self.entered.release()
        assert self.go.acquire(timeout=WAIT_S)
        if 13 in ids:
            raise ValueError("13 is not in the vocabulary")
        return [first[:, None].astype(np.float32)]


@contextlib.contextmanager
def engine(session: Gated, *, prefetch: bool = False) -> Iterator[Connection]:
    """A server with one front, whose end of the pipe is ours."""
    ours, theirs = (Connection(each.detach()) for each in socket.socketpair())
    signalled, signals = socket.socketpair()
    server = Server(session, PackedFifo(budget=8, most_rows=8, bound=6), [theirs], signals, prefetch=prefetch)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        session.go.release(100)
        thread.join(WAIT_S)
        signalled.close()
        signals.close()
        assert not thread.is_alive()


def send(pipe: Connection, *sent: int, left: Sequence[int] = ()) -> None:
    """Rows of two tokens; their numbers are their ids."""
    pipe.send((list(sent), [2] * len(sent), np.repeat(np.array(sent, np.int64), 2), list(left)))


class TestServer:
    def test_rows_that_came_meanwhile_are_the_next_batch_without_those_whose_client_left(self) -> None:
        session = Gated()
        with engine(session) as pipe:
            send(pipe, 1)
            assert session.entered.acquire(timeout=WAIT_S)
            send(pipe, 2)
            send(pipe, 3, 4, left=[2])
            send(pipe, *range(5, 20))  # row 1 and the first five of 3, 4, ...: no more
            refused = [pipe.recv() for _ in range(12)]
            assert [(found[0], found[1]) for found in refused] == [([number], Refusal.FULL) for number in range(8, 20)]
            session.go.release(3)
            answers = [pipe.recv() for _ in range(3)]
        assert session.runs == [[1], [3, 4, 5, 6], [7]]
        assert [found[0] for found in answers] == session.runs
        assert [found[2].ravel().tolist() for found in answers] == session.runs

    def test_with_prefetch_the_next_batch_is_closed_when_one_starts(self) -> None:
        session = Gated()
        with engine(session, prefetch=True) as pipe:
            send(pipe, 1)
            assert session.entered.acquire(timeout=WAIT_S)
            send(pipe, 2)
            send(pipe, 3)
            send(pipe, 4)
            send(pipe, *range(5, 9))  # the last two are refused once the others have been taken up
            assert [pipe.recv()[0] for _ in range(2)] == [[7], [8]]
            session.go.release(3)
            for _ in range(3):
                pipe.recv()
        assert session.runs == [[1], [2], [3, 4, 5, 6]]

    def test_a_bad_row_does_not_fail_the_others(self) -> None:
        session = Gated()
        session.go.release(100)
        with engine(session) as pipe:
            send(pipe, 12, 13, 14)
            found = {tuple(numbers): (refusal, answer) for numbers, refusal, answer, *_ in (pipe.recv() for _ in "123")}
        assert found[(13,)] == (Refusal.INVALID, "13 is not in the vocabulary")
        assert found[(12,)][0] is found[(14,)][0] is None


def request(rows: Sequence[Sequence[int]], **other: NDArray[np.int64]) -> Any:
    """A ModelInferRequest of rows, padded to the longest."""
    width = max(map(len, rows))
    ids = np.array([[*each, *[0] * (width - len(each))] for each in rows], np.int64)
    mask = np.array([[1] * len(each) + [0] * (width - len(each)) for each in rows], np.int64)
    made = service_pb2.ModelInferRequest(model_name="m", id="7")
    for name, array in {"input_ids": ids, "attention_mask": mask, **other}.items():
        made.inputs.add(name=name, datatype="INT64", shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    return made


def test_rows_of_a_request() -> None:
    assert [each.tolist() for each in rows_of(request([[5, 6, 7], [8]]))] == [[5, 6, 7], [8]]
    assert [each.tolist() for each in rows_of(request([[5, 6]], token_type_ids=np.zeros((1, 2), np.int64)))] == [[5, 6]]
    with pytest.raises(RefusedError, match="token_type_ids must be 0"):
        rows_of(request([[5, 6]], token_type_ids=np.ones((1, 2), np.int64)))
    wrong = request([[5, 6, 7]])
    wrong.inputs[0].shape[1] = 4
    with pytest.raises(RefusedError, match="3 values"):
        rows_of(wrong)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with drawn weights, and a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from arlo.templates.torch.encoder import Architecture

    folder = tmp_path_factory.mktemp("model")
    sizes = {"layers": 2, "width": 32, "heads": 2, "intermediate": 64, "vocabulary": 100, "positions": 64, "types": 2}
    Architecture.bert(**sizes, seed=7).write(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(100)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Running:
    """The server's process, and a channel to its gRPC port."""

    def __init__(self, model: Path, *options: str) -> None:
        command = [sys.executable, "-m", "benchmarks.peers.servers.packed_fifo", "--model", str(model)]
        command += ["--tokenizer", str(model / "tokenizer.json"), "--threads", "1", *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        word, _, addresses = self.process.stdout.readline().partition(" ")
        assert word == "ready"
        self.addresses: dict[str, str] = json.loads(addresses)
        self.channel = grpc.insecure_channel(self.addresses["grpc"])
        self.infer = self.channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )

    def vectors(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        response = self.infer(request(rows), timeout=WAIT_S)
        assert (response.id, response.outputs[0].name) == ("7", OUTPUT)
        assert {"queue_us", "execute_us"} <= set(response.parameters)
        return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(response.outputs[0].shape)

    def post(self, body: Any) -> Any:
        url = f"http://{self.addresses['http']}/v1/embeddings"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=WAIT_S) as answer:
            return json.load(answer)

    def stop(self) -> dict[str, Any]:
        """The counts that it prints in the end."""
        self.channel.close()
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0
        word, _, counts = output.partition(" ")
        assert word == "stopped"
        return dict(json.loads(counts))


@pytest.fixture
def server(model: Path) -> Iterator[Running]:
    running = Running(model, "--fronts", "2", "--max-batch-tokens", "256")
    yield running
    running.process.kill()
    running.process.communicate()


def test_server_answers_as_the_session_does_and_ends_in_order(model: Path, server: Running) -> None:
    from arlo.templates.torch.session import Session

    generator = np.random.default_rng(3)
    rows = [generator.integers(1, 100, length).tolist() for length in (1, 5, 64, 33, 12, 60, 60, 60, 60)]
    session = Session(model, precision="fp32", kinds=("packed",))
    borders = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    (expected,) = session.run_packed((OUTPUT,), np.concatenate(rows), borders)
    session.close()

    assert server.vectors(rows) == pytest.approx(expected, abs=1e-5)
    one_by_one = [server.infer.future(request([each]), timeout=WAIT_S) for each in rows]
    for call, vector in zip(one_by_one, expected, strict=True):
        found = np.frombuffer(call.result().raw_output_contents[0], np.float32)
        assert found == pytest.approx(vector, abs=1e-5)

    texts = [" ".join(f"w{number}" for number in each) for each in rows]
    found = server.post({"input": texts, "model": "m"})
    assert np.array([each["embedding"] for each in found["data"]]) == pytest.approx(expected, abs=1e-5)
    assert found["usage"]["prompt_tokens"] == borders[-1]
    assert np.array(server.post({"input": texts[2] + " w1 w2"})["data"][0]["embedding"]) == pytest.approx(
        expected[2], abs=1e-5
    )  # cut at the model's length
    with pytest.raises(urllib.error.HTTPError, match="400") as wrong:
        server.post({"input": 5})
    wrong.value.close()
    for bad in ([[1] * 65], [[100]]):
        with pytest.raises(grpc.RpcError) as refused:
            server.vectors(bad)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    cancelled = [server.infer.future(request([rows[2]] * 20), timeout=WAIT_S) for _ in range(8)]
    for call in cancelled:
        call.cancel()
    assert server.vectors(rows[:1]) == pytest.approx(expected[:1], abs=1e-5)
    counts = server.stop()
    assert counts["refused"] == 0
    # Rows of cancelled calls were computed, dropped, or never left their front.
    assert 3 * len(rows) + 2 <= counts["rows"] + counts["dropped"] <= 3 * len(rows) + 2 + 160
    assert counts["batches"] >= 5
