"""The servers: their requirements, how they are started, and their APIs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from arlo.compile.steps.resolve import DEMO_MODEL, demo_model_path
from arlo.errors import EnvironmentProblem
from arlo.workers.ports import free_port
from arlo.workers.process import GuardedProcess
from arlo.workers.triton.server import core_count
from benchmarks import harness
from benchmarks.peers.environments import Environment, cache
from benchmarks.peers.load import Server

HOST, MODEL = "127.0.0.1", "minilm"
SERVERS = Path(__file__).parent / "servers"
MAX_TOKENS = 256  # of the model's sentence_bert_config.json: sentence-transformers cuts there
MOST_ROWS = 32  # in a batch of Triton's

SENTENCE = Environment(
    name="sentence-transformers",
    packages=("sentence-transformers==6.2.0", "fastapi==0.165.0", "uvicorn[standard]==0.54.0", "torch==2.13.0"),
)
INFINITY = Environment(
    name="infinity",
    packages=(
        "infinity-emb[torch,server,optimum]==0.0.78",
        "torch==2.13.0",
        "transformers==4.57.6",
        "sentence-transformers==3.4.1",
        "optimum==2.1.0",
        "optimum-onnx==0.1.0",
        "onnxruntime==1.31.1",
    ),
    constrained=False,  # it wants older ones of much
)
TRITON = Environment(
    name="triton", packages=("nvidia-pytriton==0.7.0", "onnxruntime==1.31.1", "tokenizers==0.23.3", "numpy==1.26.4")
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings that a server is started with."""

    work: Path  # for its files and logs
    slo_ms: int
    events: bool = False  # Arlo logs them, as JSON lines


Start = Callable[[Setting, contextlib.AsyncExitStack], tuple[str, list[int]]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A server. `start` returns the URL for texts and the processes to count, and puts their cleanup on the stack."""

    name: str
    what: str
    start: Start
    environment: Environment | None = None
    kserve: bool = False  # else OpenAI's embeddings
    needs_graph: bool = False  # as `graph` exports it
    needs_folder: bool = False  # as `torch_folder` exports it

    @contextlib.asynccontextmanager
    async def running(self, setting: Setting) -> AsyncIterator[Server]:
        """The server's processes, started; it may not answer yet. They end with the context, or with this process."""
        async with contextlib.AsyncExitStack() as stack:
            url, pids = self.start(setting, stack)
            body, vector = (_kserve_body, _kserve_vector) if self.kserve else (_openai_body, _openai_vector)
            yield Server(self.name, url, body, vector, pids)


def _openai_body(text: str) -> dict[str, Any]:
    return {"model": MODEL, "input": text}


def _openai_vector(answer: Any) -> list[float]:
    return list(answer["data"][0]["embedding"])


def _kserve_body(text: str) -> dict[str, Any]:
    return {"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}


def _kserve_vector(answer: Any) -> list[float]:
    return list(answer["outputs"][0]["data"])


def _process(
    name: str,
    command: list[str],
    env: Mapping[str, str],
    setting: Setting,
    stack: contextlib.AsyncExitStack,
    *,
    shm_prefix: str = "",
) -> int:
    """Start a process under a guard; it ends with the stack."""
    # Nothing of this environment's: a rival finds its own packages, and downloads no models.
    clean = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}
    process = GuardedProcess.start(
        command,
        env=clean | offline | dict(env),
        log=setting.work / f"{name}.log",
        grace_s=20.0,
        shm_prefix=shm_prefix,
    )
    stack.push_async_callback(process.stop, timeout_s=30.0)
    return process.pid


def _arlo(setting: Setting, stack: contextlib.AsyncExitStack) -> tuple[str, list[int]]:
    port = free_port(HOST)
    command = [sys.executable, "-m", "arlo.cli", "up", DEMO_MODEL, "--name", MODEL, "--port", str(port), "--json"]
    command += ["--grpc-port", "0", "--slo-ms", str(setting.slo_ms)]
    command += ["--log-json"] if setting.events else []
    pid = _process("arlo", command, {}, setting, stack)
    return f"http://{HOST}:{port}/v1/embeddings", [pid]


def _sentence(setting: Setting, stack: contextlib.AsyncExitStack) -> tuple[str, list[int]]:
    port = free_port(HOST)
    command = [str(SENTENCE.python), "-m", "uvicorn", "sentence_app:app", "--app-dir", str(SERVERS)]
    command += ["--host", HOST, "--port", str(port), "--no-access-log"]
    pid = _process("sentence-transformers", command, {"PEERS_MODEL": str(demo_model_path())}, setting, stack)
    return f"http://{HOST}:{port}/v1/embeddings", [pid]


def _infinity(engine: str) -> Start:
    def start(setting: Setting, stack: contextlib.AsyncExitStack) -> tuple[str, list[int]]:
        port = free_port(HOST)
        folder = demo_model_path() if engine == "torch" else model_with_graph()
        # In the folder: it gives optimum the graph's path, which has to be below the model's.
        command = ["env", "-C", str(folder), str(INFINITY.folder / "bin" / "infinity_emb"), "v2", "--model-id", "."]
        command += ["--engine", engine]
        command += ["--served-model-name", MODEL, "--device", "cpu", "--host", HOST, "--port", str(port)]
        command += ["--no-bettertransformer"]
        command += ["--pooling-method", "mean"]  # with optimum it takes the first token's by default
        off = {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HOME": str(cache() / "huggingface")}
        return f"http://{HOST}:{port}/embeddings", [_process(f"infinity-{engine}", command, off, setting, stack)]

    return start


def _packed_fifo(setting: Setting, stack: contextlib.AsyncExitStack) -> tuple[str, list[int]]:
    port = free_port(HOST)
    command = [sys.executable, "-m", "benchmarks.peers.servers.packed_fifo", "--model", str(torch_folder())]
    command += ["--host", HOST, "--http-port", str(port), "--tokenizer", str(demo_model_path() / "tokenizer.json")]
    command += ["--max-tokens", str(MAX_TOKENS), "--threads", str(core_count())]
    pid = _process("packed_fifo", command, {"PYTHONPATH": str(harness.ROOT)}, setting, stack)
    return f"http://{HOST}:{port}/v1/embeddings", [pid]


def _triton(name: str, threads: int, setting: Setting, stack: contextlib.AsyncExitStack) -> tuple[int, int]:
    """A plain Triton on a free port: the port and the process."""
    root = TRITON.site / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise EnvironmentProblem(f"nvidia-pytriton has no Python-backend stub for Python {version}: use 3.11 or 3.12")
    work = setting.work / name
    backend = work / "backends" / "python"
    backend.mkdir(parents=True)
    for file in [*(root / "backends" / "python").iterdir(), stub]:
        link = backend / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    model = work / "repository" / MODEL
    (model / "1").mkdir(parents=True)
    shutil.copy(SERVERS / "triton_model.py", model / "1" / "model.py")
    parameters = {
        "graph": graph(),
        "tokenizer": demo_model_path() / "tokenizer.json",
        "max_tokens": MAX_TOKENS,
        "threads": threads,
    }
    (model / "config.pbtxt").write_text(triton_config(parameters))
    port = free_port(HOST)
    command = [str(root / "bin" / "tritonserver"), f"--model-repository={work / 'repository'}"]
    command += [f"--backend-directory={work / 'backends'}", f"--http-address={HOST}", f"--http-port={port}"]
    prefix = f"peers_{os.getpid()}_{port}_"
    command += ["--allow-grpc=false", "--allow-metrics=false", "--exit-timeout-secs=5"]
    command += [f"--backend-config=python,shm-region-prefix-name={prefix}"]
    env = {
        "LD_LIBRARY_PATH": f"{TRITON.site / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}",
        "PATH": f"{TRITON.folder / 'bin'}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(TRITON.site),
        "OMP_NUM_THREADS": str(threads),
    }
    return port, _process(name, command, env, setting, stack, shm_prefix=prefix)


def triton_config(parameters: Mapping[str, object]) -> str:
    """config.pbtxt of the text model: Triton's dynamic batcher as it comes, one instance."""
    lines = [
        f'name: "{MODEL}"\nbackend: "python"\nmax_batch_size: {MOST_ROWS}',
        'input [{ name: "TEXT" data_type: TYPE_STRING dims: [1] }]',
        'output [{ name: "VECTOR" data_type: TYPE_FP32 dims: [-1] }]',
        "instance_group [{ count: 1 kind: KIND_CPU }]\ndynamic_batching { }",
    ]
    lines += [
        f'parameters {{ key: "{key}" value: {{ string_value: {json.dumps(str(value))} }} }}'
        for key, value in parameters.items()
    ]
    return "\n".join(lines) + "\n"


def _plain(setting: Setting, stack: contextlib.AsyncExitStack) -> tuple[str, list[int]]:
    port, pid = _triton("triton", core_count(), setting, stack)
    return f"http://{HOST}:{port}/v2/models/{MODEL}/infer", [pid]


def _nginx(setting: Setting, stack: contextlib.AsyncExitStack) -> tuple[str, list[int]]:
    program = harness.need("nginx", "apt-get install nginx-light, or leave it out with --only")
    tritons = [_triton(f"nginx-triton-{k}", max(1, core_count() // 2), setting, stack) for k in (1, 2)]
    port = free_port(HOST)
    path = setting.work / "nginx.conf"
    path.write_text(nginx_config(port, [each for each, _ in tritons], setting.work))
    command = [program, "-c", str(path), "-p", str(setting.work), "-e", str(setting.work / "nginx-error.log")]
    pid = _process("nginx", command, {}, setting, stack)
    return f"http://{HOST}:{port}/v2/models/{MODEL}/infer", [pid, *(each for _, each in tritons)]


def nginx_config(port: int, upstreams: list[int], work: Path) -> str:
    """nginx.conf: least_conn over the upstreams' ports, connections kept open, nothing logged but errors."""
    servers = " ".join(f"server {HOST}:{each};" for each in upstreams)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"  {kind}_temp_path {work / 'nginx-temporary'};" for kind in kinds)
    user = "user root;\n" if os.getuid() == 0 else ""
    return f"""{user}daemon off;
worker_processes 1;
pid {work / "nginx.pid"};
events {{ worker_connections 4096; }}
http {{
  access_log off;
{temporary}
  upstream tritons {{ least_conn; {servers} keepalive 64; }}
  server {{
    listen {HOST}:{port};
    client_body_buffer_size 64k;
    location / {{ proxy_pass http://tritons; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def graph() -> Path:
    """The model's encoder as ONNX, exported once into the cache; for the rivals that run ONNX Runtime."""
    path = cache() / "onnx" / "model.onnx"
    if not path.is_file():
        command = [sys.executable, str(SERVERS / "export.py"), str(demo_model_path()), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EnvironmentProblem(f"the model was not exported for the rivals:\n{done.stderr.strip()[-1500:]}")
    return path


def torch_folder() -> Path:
    """The model's folder for Arlo's torch engine, exported once into the cache."""
    from arlo.compile.cache import Hasher
    from arlo.compile.options import CompileOptions
    from arlo.compile.steps.export_torch import export_torch
    from arlo.compile.steps.resolve import resolve

    folder = cache() / "torch-fp32"
    if not folder.is_dir():
        scratch = folder.with_name("torch-fp32.new")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        model = resolve(CompileOptions(source=demo_model_path(), out=scratch), Hasher())
        export_torch(model, "fp32", scratch)
        scratch.rename(folder)
    return folder


def model_with_graph() -> Path:
    """The model's folder with the graph in it, as links: infinity-emb's ONNX engine looks for it there."""
    folder = cache() / "model-onnx"
    folder.mkdir(parents=True, exist_ok=True)
    for source in [*(each for each in demo_model_path().iterdir() if each.suffix != ".safetensors"), graph()]:
        link = folder / source.name
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(source)
    return folder


RIVALS = {
    rival.name: rival
    for rival in (
        Rival(name="arlo", what="`arlo up`", start=_arlo),
        Rival(
            name="sentence-transformers",
            what="sentence-transformers behind FastAPI and uvicorn",
            start=_sentence,
            environment=SENTENCE,
        ),
        Rival(name="infinity-torch", what="infinity-emb, torch", start=_infinity("torch"), environment=INFINITY),
        Rival(
            name="infinity-onnx",
            what="infinity-emb, optimum on ONNX Runtime",
            start=_infinity("optimum"),
            environment=INFINITY,
            needs_graph=True,
        ),
        Rival(
            name="packed_fifo",
            what="text-embeddings-inference's batching on Arlo's torch engine",
            start=_packed_fifo,
            needs_folder=True,
        ),
        Rival(
            name="triton",
            what="plain Triton: ONNX Runtime in the Python backend, dynamic batching",
            start=_plain,
            environment=TRITON,
            kserve=True,
            needs_graph=True,
        ),
        Rival(
            name="nginx-tritons",
            what="nginx least_conn over two of those, half of the cores each",
            start=_nginx,
            environment=TRITON,
            kserve=True,
            needs_graph=True,
        ),
    )
}
