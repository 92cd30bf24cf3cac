"""The page at /, in a real browser: what is served, similarities, labels and rankings, and where the time went."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from tests.fakes.gateway import SANITIZED, Gateway
from tests.integration.gateway.replayed import LABELS

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed: the page is not looked at"),
    pytest.mark.skipif(SANITIZED, reason="a browser says nothing of the gateway's memory"),
]
TEXTS = ["a text", "another <b>text</b>", "quite something else"]


async def page(gateway: Gateway, folder: Path, *flags: str, **asked: str | list[str]) -> str:
    """The document as the browser has made it, once its requests are answered."""
    assert BROWSER is not None
    url = f"http://{gateway.api}/#" + urlencode({**asked, "run": ""}, doseq=True)
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", "--window-size=1100,1250", *flags,
        "--dump-dom", url,
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
    )
    out, problems = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, problems.decode()
    return out.decode()


def cells(document: str, table: str) -> list[list[str]]:
    body = re.search(rf'<table[^>]*id="{table}".*?</table>', document, re.DOTALL)
    assert body is not None, document[-4000:]
    rows = re.findall(r"<tr>(.*?)</tr>", body[0], re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>([^<]*)", row) for row in rows]


async def test_similarities_as_a_picture(served: Gateway, tmp_path: Path) -> None:
    document = await page(served, tmp_path, model="emu", text=TEXTS)
    kinds = [["emu", "vectors"], ["ranker", "ranking"], ["slow", "vectors"], ["small", "labels"]]
    assert sorted(row[:2] for row in cells(document, "models")[1:]) == kinds
    matrix = cells(document, "matrix")
    assert [row[1:] for row in matrix[1:]] == [["1.00"] * 3] * 3  # all numbers of an emulated vector are the same
    assert matrix[2][0] == "2  another &lt;b&gt;text&lt;/b&gt;"
    times = re.search(r'id="times"[^>]*aria-label="([^"]*)"', document)
    assert times is not None
    assert re.fullmatch(r"tokenise [\d.]+ ms, queue [\d.]+ ms, execute [\d.]+ ms, rest: .*", times[1])


def code(document: str, language: str) -> str:
    found = re.search(rf'<pre id="code-{language}">(.*?)</pre>', document, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


async def test_the_code_asks_the_same(served: Gateway, tmp_path: Path) -> None:
    texts = ['it\'s "quoted" \\ $HOME', "naïve 🙂"]
    document = await page(served, tmp_path, model="emu", text=texts)
    async with httpx.AsyncClient(base_url=f"http://{served.api}", timeout=20) as http:
        wanted = (await http.post("/embed", json={"model": "emu", "inputs": texts})).json()
    by_python = code(document, "python").replace(
        "print(answer.json())", "print(__import__('json').dumps(answer.json()))"
    )
    # `requests` is not of this package; httpx has the same words for it.
    commands = [["bash", "-c", code(document, "curl")]]
    commands.append([sys.executable, "-c", by_python.replace("import requests", "import httpx as requests")])
    for command in commands:
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, json.loads(done.stdout)) == (0, wanted), done.stderr


async def test_bars_are_of_certainty_and_a_phone_shows_all(served: Gateway, tmp_path: Path) -> None:
    document = await page(served, tmp_path / "small", model="small", text=TEXTS[:1])
    widths = [float(width) for width in re.findall(r'class="bar"[^>]*><div style="width: ([\d.]+)%', document)]
    scores = [float(row[-1]) for row in cells(document, "labels-0")]
    assert len(widths) == len(scores) == LABELS
    assert widths == pytest.approx([100 * score for score in scores], abs=0.1)
    document = await page(served, tmp_path / "phone", "--window-size=360,800", model="emu", text=TEXTS)
    assert re.findall(r"<li>([^<]*)</li>", document.split('class="whole"')[1].split("</ol>")[0]) == [
        "a text", "another &lt;b&gt;text&lt;/b&gt;", "quite something else",
    ]  # fmt: skip


async def test_rankings_and_labels(served: Gateway, tmp_path: Path) -> None:
    document = await page(served, tmp_path / "ranker", model="ranker", query="one query", text=TEXTS)
    ranks = cells(document, "ranks")
    assert sorted(row[0] for row in ranks) == sorted(text.replace("<", "&lt;").replace(">", "&gt;") for text in TEXTS)
    scores = [float(row[-1]) for row in ranks]
    assert scores == sorted(scores, reverse=True)
    document = await page(served, tmp_path / "small", model="small", text=TEXTS[:1])
    assert sorted(row[0] for row in cells(document, "labels-0")) == [f"label {number}" for number in range(LABELS)]


async def test_what_is_wrong_is_said(served: Gateway, tmp_path: Path) -> None:
    document = await page(served, tmp_path, model="ranker", query="", text=TEXTS)
    assert re.search(r'<p id="wrong" role="alert">422: query is missing, or empty</p>', document)
