"""Every path of the HTTP API under schemathesis: requests drawn from /openapi.json, right and wrong ones.

`make test-api` installs schemathesis into an environment of its own and runs this; EXAMPLES says how many requests are
drawn for each operation and phase.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from tests.fakes.triton_workers import Workers
from tests.integration.gateway.api_models import api_of_models

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "build" / "schemathesis" / "bin" / "schemathesis"
EXAMPLES = int(os.environ.get("ARLO_API_EXAMPLES", "10"))

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PROGRAM.exists(), reason="schemathesis is not installed: `make test-api` does it"),
    pytest.mark.long,
    pytest.mark.timeout(1500 + 60 * EXAMPLES),
]
# No crash and no 500; what is answered stands in the description, in its form, with its type.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


async def test_every_path_under_schemathesis(workers: Workers, tokenizer: Path, tmp_path: Path) -> None:
    async with api_of_models(workers, tokenizer, tmp_path / "gateway") as gateway:
        for model in ("emu", "small", "ranker"):
            # A request that names no model is refused; so that many are not, each run has one that is put in.
            (tmp_path / "hooks.py").write_text(HOOKS.format(model=model))
            command = [
                str(PROGRAM), "run", f"http://{gateway.api}/openapi.json", "--checks", CHECKS, "--phases",
                "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1", "--workers", "1",
                "--request-timeout", "20", "--no-color", "--suppress-health-check", "all",
            ]  # fmt: skip
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=tmp_path,
                env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(tmp_path)},
            )
            out, _ = await process.communicate()
            assert process.returncode == 0, out.decode()[-12000:]
            async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=20) as client:
                assert (await client.post("/v1/embeddings", json={"model": "emu", "input": "a"})).status_code == 200


HOOKS = """
import schemathesis


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and ("model" not in body or isinstance(body["model"], str)):
        body["model"] = "{model}"
    return body


@schemathesis.hook
def before_call(context, case, kwargs):
    # One that waits for a millisecond is rightly told that it is over (504), where the machine is slow.
    waits = str((case.headers or {{}}).get("x-request-timeout-ms", ""))
    if waits.isdecimal() and 0 < int(waits) < 10_000:
        case.headers["x-request-timeout-ms"] = "10000"


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if path_parameters and "model" in path_parameters and len(str(path_parameters["model"])) % 2:
        path_parameters["model"] = "{model}"
    return path_parameters
"""
