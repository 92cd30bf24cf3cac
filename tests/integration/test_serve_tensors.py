"""`arlo serve` of pipelines whose rows are tensors: real Triton with Python code, an unchanged tritonclient."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from arlo.catalog.wrapped import wrap
from tests.fakes.serving import Serving, serving
from tests.fakes.tensor_stages import (
    BEST,
    CODE,
    CUT,
    SERVE,
    SUM,
    inputs_of,
    nothing_left,
)

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

FLOW = """\
[flow]
name = "pages"
slo_ms = 20000
max_children = 64
[[flow.stage]]
name = "cut"
told = true
variants = [{repository = "cut", accuracy = 0.9}, {repository = "cut2", accuracy = 0.8}]
[[flow.stage]]
name = "sum"
variants = [{repository = "sum", accuracy = 1.0}]
[[flow.stage]]
name = "best"
variants = [{repository = "best", accuracy = 1.0}]
[[flow.edge]]
from = "cut"
to = "sum"
expand = {kind = "tensor", factor = 3, max = 40, inputs = {strip = "strips"}}
[[flow.edge]]
from = "cut"
to = "best"
expand = {kind = "top_k", output = "scores", max = 2, factor = 2}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("tensors")
    for name, text in (("cut", CUT), ("cut2", CUT), ("sum", SUM), ("best", BEST)):
        (folder / f"{name}.toml").write_text(text.format(name=name, code=CODE))
        wrap(folder / f"{name}.toml", folder / name)
    (folder / "flow.toml").write_text(FLOW)
    (folder / "serve.toml").write_text(SERVE)
    async with serving(folder) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def client(served: Serving) -> AsyncIterator[triton.InferenceServerClient]:
    async with triton.InferenceServerClient(served.ready["grpc"]) as one:
        yield one


MODELS = ("pages.cut.cut", "pages.cut.cut2", "pages.sum.sum", "pages.best.best")
OUTPUTS = ("sum.total", "sum.echo", "sum.row", "best.said", "best.row", "cut.scores", "cut.row", "children", "route")


async def ask(client: Any, pages: Sequence[bytes], outputs: Sequence[str] = OUTPUTS, **more: Any) -> Any:
    wanted = [triton.InferRequestedOutput(name) for name in outputs]
    return await client.infer("pages", inputs_of(pages), outputs=wanted, **more)


def check(answer: Any, pages: Sequence[bytes]) -> None:
    """Every part of every page, in its place, with what its page and its letters come to."""
    parts = [[part for part in page.split(b"|") if part] for page in pages]
    rows = [row for row, each in enumerate(parts) for _ in each]
    flat = [part for each in parts for part in each]
    assert answer.as_numpy("sum.row").tolist() == rows
    assert answer.as_numpy("sum.total").reshape(-1).tolist() == [2 * sum(part) for part in flat]
    places = [place for each in parts for place in range(len(each))]
    echo = [b"%s#%d#%d" % (pages[r], p, len(part)) for r, p, part in zip(rows, places, flat, strict=True)]
    assert answer.as_numpy("sum.echo").reshape(-1).tolist() == echo
    assert answer.as_numpy("best.row").tolist() == [row for row in range(len(pages)) for _ in range(2)]
    best = [sorted(((len(page), 0), (3, 1), (5, 3)), key=lambda one: (-one[0], one[1]))[:2] for page in pages]
    said = [[label, score] for each in best for score, label in each]
    assert answer.as_numpy("best.said").tolist() == said
    assert answer.as_numpy("cut.scores")[:, 0].tolist() == [len(page) for page in pages]
    assert answer.as_numpy("cut.row").tolist() == list(range(len(pages)))
    assert answer.as_numpy("children").tolist() == [len(each) + 2 for each in parts]


async def test_pages_become_rows(client: Any, served: Serving) -> None:
    """Fan-out that only the data know: strips of different lengths in one batch, parts of none, labels of each page."""
    pages = [b"ab|cde|f", b"x", b"", b"|", b"abcdefghijklmnop|b|b|b|b|b|b|b|b|b|b"]
    answer = await ask(client, pages)
    check(answer, pages)
    routes = answer.as_numpy("route").tolist()
    assert routes[0].count(b">pages.sum.sum") == 3
    plain = await client.infer("pages", inputs_of([b"ab|c"]))
    names = {output.name for output in plain.get_response().outputs}
    assert names == {"sum.total", "sum.echo", "sum.row", "best.said", "best.row"}
    metadata = await client.get_model_metadata("pages", as_json=True)
    assert metadata["inputs"] == [{"name": "page", "datatype": "BYTES", "shape": ["-1", "1"]}]
    await nothing_left(served, MODELS)


async def test_nonsense_of_a_stage(client: Any, served: Serving) -> None:
    """A stage that answers what cannot be: its row fails and says why, rows beside it do not."""
    for page, what in (
        (b"!less|a", "children"),
        (b"!minus|a", "-1 children"),
        (b"!type|a", "datatype FP32"),
        (b"!odd|a", "[StatusCode.INTERNAL] what goes to stage 'sum' of the pipeline does not fit it"),
        (b"!fail", "no such page"),
        (b"a|" + b"b" * 17, "takes 1 to 16"),
    ):
        beside = asyncio.create_task(ask(client, [b"ab|cde"] * 3))
        with pytest.raises(InferenceServerException, match=re.escape(what)):
            await ask(client, [page])
        check(await beside, [b"ab|cde"] * 3)
    check(await ask(client, [b"after|all"]), [b"after|all"])
    await nothing_left(served, MODELS)
