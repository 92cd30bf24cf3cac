"""`arlo serve` of a pipeline whose branches join: real Triton with Python code, an unchanged tritonclient."""

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
from arlo.control.gateway.admin import AdminClient
from tests.fakes.serving import Serving, serving
from tests.fakes.tensor_stages import (
    ALL,
    CODE,
    CUT,
    SERVE,
    SIZE,
    SUM,
    inputs_of,
    kill_under_load,
    leave_under_way,
    nothing_left,
)

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

# Every part of a page and the page as a whole, and one row of all of them.
FLOW = """\
[flow]
name = "pages"
slo_ms = 20000
max_children = 64
[[flow.stage]]
name = "cut"
variants = [{repository = "cut", accuracy = 0.9}]
[[flow.stage]]
name = "sum"
variants = [{repository = "sum", accuracy = 1.0}, {repository = "sum2", accuracy = 0.9}]
[[flow.stage]]
name = "size"
variants = [{repository = "size", accuracy = 1.0}]
[[flow.stage]]
name = "all"
variants = [{repository = "all", accuracy = 1.0}]
[[flow.edge]]
from = "cut"
to = "sum"
expand = {kind = "tensor", factor = 3, max = 40, inputs = {strip = "strips"}}
[[flow.edge]]
from = "cut"
to = "size"
[[flow.edge]]
from = "sum"
to = "all"
join = "cut"
[[flow.edge]]
from = "size"
to = "all"
join = "cut"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    folder = tmp_path_factory.mktemp("joins")
    for name, text in (("cut", CUT), ("sum", SUM), ("sum2", SUM), ("size", SIZE), ("all", ALL)):
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


MODELS = tuple(f"pages.{model}" for model in ("cut.cut", "sum.sum", "sum.sum2", "size.size", "all.all"))
OUTPUTS = ("lines", "sum", "text", "row", "children", "route", "accuracy_expected")


async def ask(client: Any, pages: Sequence[bytes], outputs: Sequence[str] = OUTPUTS, **more: Any) -> Any:
    wanted = [triton.InferRequestedOutput(name) for name in outputs]
    return await client.infer("pages", inputs_of(pages), outputs=wanted, **more)


def check(answer: Any, pages: Sequence[bytes]) -> None:
    """One answer for each page, of all its parts in their order, and of the page."""
    parts = [[part for part in page.split(b"|") if part] for page in pages]
    assert answer.as_numpy("row").tolist() == list(range(len(pages)))
    assert answer.as_numpy("children").tolist() == [1] * len(pages)
    assert answer.as_numpy("lines").reshape(-1).tolist() == [len(each) + 1 for each in parts]
    totals = [2 * sum(map(sum, each)) + len(page) for page, each in zip(pages, parts, strict=True)]
    assert answer.as_numpy("sum").reshape(-1).tolist() == totals
    texts = [
        b"\n".join([*(b"%s#%d#%d" % (page, p, len(part)) for p, part in enumerate(each)), page + b"#size"])
        for page, each in zip(pages, parts, strict=True)
    ]
    assert answer.as_numpy("text").reshape(-1).tolist() == texts


async def test_branches_join(client: Any, served: Serving) -> None:
    pages = [b"ab|cde|f", b"x", b"", b"|", b"abcdefghijklmnop|b|b|b|b|b|b|b|b|b|b"]
    answer = await ask(client, pages)
    check(answer, pages)
    assert answer.as_numpy("route").tolist()[2] == b"pages.cut.cut>pages.size.size>pages.all.all"
    assert answer.as_numpy("accuracy_expected").tolist() == pytest.approx([0.9] * 5, abs=1e-6)
    plain = await client.infer("pages", inputs_of([b"ab|c"]))
    assert {output.name for output in plain.get_response().outputs} == {"lines", "sum", "text", "row"}
    async with AdminClient(served.ready["admin"], model="pages") as admin:
        stages = (await admin.stats()).pipeline
        assert [stage.arrived for stage in stages] == [6, 17, 6, 6]
        assert sum(sum(v.ended for v in stage.variants) for stage in stages) == 6  # of the last stage
    await nothing_left(served, MODELS)


async def test_ways_that_differ(client: Any) -> None:
    """What a row is made of may have gone other ways; its own says so, and can be pinned."""
    both = "pages.cut.cut>(pages.sum.sum2+pages.size.size)>pages.all.all"
    answer = await ask(client, [b"ab|c"], parameters={"pin": both})
    check(answer, [b"ab|c"])
    assert answer.as_numpy("route").tolist() == [both.encode()]
    assert answer.as_numpy("accuracy_expected").tolist() == pytest.approx([0.9 * 0.95], abs=1e-6)
    with pytest.raises(InferenceServerException, match="two variants of stage sum"):
        await ask(client, [b"ab"], parameters={"pin": "pages.sum.sum>pages.sum.sum2"})


async def test_rows_that_cannot_be_made(client: Any, served: Serving) -> None:
    for page, what in (
        (b"!fail", "no such page"),
        (b"!huge", "RESOURCE_EXHAUSTED"),
        (b"|".join([b"a" * 1000] * 3 + [b"b" * 16] * 30), "takes 1 to 16"),
        (b"|".join([b"b" * 16] * 40) + b"|" * 4000, "max_bytes"),  # 40 lines with the page in each
    ):
        beside = asyncio.create_task(ask(client, [b"ab|cde"] * 3))
        with pytest.raises(InferenceServerException, match=re.escape(what)):
            await ask(client, [page])
        check(await beside, [b"ab|cde"] * 3)
    await nothing_left(served, MODELS)


async def test_clients_that_leave(client: Any, served: Serving) -> None:
    await leave_under_way(served, lambda: ask(client, [b"!slow|ab|cd"] * 4), stage=1)
    check(await ask(client, [b"ab|c"]), [b"ab|c"])
    await nothing_left(served, MODELS)


async def test_a_killed_worker(client: Any, served: Serving) -> None:
    """kill -9 of a worker with pages under way: each is answered once, and of all its parts."""

    async def right(pages: list[bytes]) -> None:
        check(await ask(client, pages), pages)

    await kill_under_load(served, right)
    await nothing_left(served, MODELS)
