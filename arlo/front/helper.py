"""A process that tokenises text for the gateway (src/gateway/text), with the `tokenizers` package.

Standard input is a two-way socket. A message is two sizes of 4 bytes, little-endian, then that many bytes of JSON and
of payload. `load` and `forget` have no answer; each `encode` and `decode` has one. The process ends with the gateway.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import struct
from array import array
from collections.abc import Iterator
from typing import Any, BinaryIO

_SIZES = struct.Struct("<II")
LONGEST_TEXT = 4_000_000  # characters; a package takes seconds for more
LONGEST_WORD = 200_000  # the time for a word grows faster than its length
MOST_CHARACTERS = 250  # a token of a text that is cut; TEI's bound, which keeps long texts below seconds
MOST_BYTES = 4 * MOST_CHARACTERS  # a token; of a longer text the gateway sends a part (src/rewrite/model.cc)


class RefusalError(Exception):
    """The reason, for the client, why there are no token ids."""


@dataclasses.dataclass
class Loaded:
    """A tokenizer that neither truncates nor pads by itself, and the special tokens around a single text."""

    tokenizer: Any
    before: list[int]
    behind: list[int]


def load(file: bytes) -> Loaded:
    """The tokenizer in the bytes of a tokenizer.json."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_buffer(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for text in ("a", "the", "0", "."):
        bare = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text).ids
        for at in range(len(whole) - len(bare) + 1 if bare else 0):
            if whole[at : at + len(bare)] == bare:
                return Loaded(tokenizer, whole[:at], whole[at + len(bare) :])
    return Loaded(tokenizer, [], [])


def row_of(number: int, asked: dict[str, Any]) -> int:
    """The client's row that a text belongs to: `number` counts the first texts of pairs, then the second ones."""
    rows: int = len(asked["sizes"]) // (1 + asked["pairs"])
    return int(asked.get("first", 0)) + number % rows


def check_size(text: str, row: int) -> None:
    """Refuse a text that would take too long."""
    if len(text) > LONGEST_TEXT:
        raise RefusalError(f"row {row}: the text has {len(text)} characters, above {LONGEST_TEXT}: send it in parts")
    if len(text) > LONGEST_WORD and (longest := max(map(len, text.split()), default=0)) > LONGEST_WORD:
        raise RefusalError(
            f"row {row}: the text has a word of {longest} characters, above {LONGEST_WORD}: put spaces between words"
        )


def looked_at(text: str, row: int, asked: dict[str, Any]) -> str:
    """The part of a text that suffices to cut it to `most` tokens, unless some characters make no tokens."""
    most = 0 if asked["written"] else MOST_CHARACTERS * asked["most"]
    part = text if not most else text[-most:] if asked["keep_end"] else text[:most]
    check_size(part, row)
    return part


def encode(loaded: Loaded, asked: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Token ids of texts or pairs, cut to `most` tokens as `tokenizers` cuts: of a pair the longer text first."""
    texts, at = [], 0
    for size in asked["sizes"]:
        try:
            texts.append(blob[at : at + size].decode())
        except UnicodeDecodeError:
            raise RefusalError(f"row {row_of(len(texts), asked)}: the text is not UTF-8") from None
        at += size
    most_bytes = 0 if asked["written"] else MOST_BYTES * asked["most"]
    parts = [looked_at(text, row_of(number, asked), asked) for number, text in enumerate(texts)]
    half = len(parts) // 2
    rows = list(zip(parts[:half], parts[half:], strict=True)) if asked["pairs"] else parts
    tokenizer, most = loaded.tokenizer, asked["most"]
    if most:
        added = tokenizer.num_special_tokens_to_add(asked["pairs"]) if asked["special"] else 0
        if most < added + 1 + asked["pairs"]:
            raise RefusalError(f"{most} tokens leave no room for text beside {added} special ones")
        tokenizer.enable_truncation(most, direction="left" if asked["keep_end"] else "right")
    try:
        made = tokenizer.encode_batch(rows, add_special_tokens=asked["special"])
        for row, each in enumerate(made):
            own = (row, half + row) if asked["pairs"] else (row,)
            if each.overflowing or all(len(parts[i]) == len(texts[i]) for i in own):
                continue
            with contextlib.suppress(RefusalError):  # the text after the part fits as well, if it is quick to tokenise
                for i in own:
                    check_size(texts[i], row)
                made[row] = tokenizer.encode(*(texts[i] for i in own), add_special_tokens=asked["special"])
                for i in own:
                    parts[i] = texts[i]
    finally:
        tokenizer.no_truncation()
    if asked["written"] and any(each.overflowing for each in made):
        raise RefusalError(f"inputs: they have more than {most} tokens: send fewer at a time")
    longer = [
        len(part) < len(text) or 0 < most_bytes < size
        for part, text, size in zip(parts, texts, asked["sizes"], strict=True)
    ]
    answer: dict[str, Any] = {
        "counts": [len(each.ids) for each in made],
        "cut": [
            int(bool(each.overflowing) or longer[row] or (asked["pairs"] and longer[half + row]))
            for row, each in enumerate(made)
        ],
        "before": loaded.before,
        "behind": loaded.behind,
    }
    if asked["written"]:
        answer["words"] = [each.tokens for each in made]
        answer["specials"] = [each.special_tokens_mask for each in made]
        answer["places"] = [each.offsets for each in made]
    ids = b"".join(array("i", each.ids).tobytes() for each in made)
    return answer, ids + b"".join(bytes(each.type_ids) for each in made)


def messages(source: BinaryIO) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Messages until the gateway has gone."""
    while len(sizes := source.read(_SIZES.size)) == _SIZES.size:
        head, blob = (source.read(size) for size in _SIZES.unpack(sizes))
        yield json.loads(head), blob


def serve(source: BinaryIO, answers: BinaryIO) -> None:
    """Answer one message after the other."""
    known: dict[int, Loaded | bytes] = {}
    for asked, blob in messages(source):
        made: dict[str, Any] = {}
        behind = b""
        match asked["op"]:
            case "forget":
                known.clear()
                continue
            case "load":
                known[asked["key"]] = blob
                continue
        try:
            loaded = known[asked["key"]]
            if isinstance(loaded, bytes):
                known[asked["key"]] = loaded = load(loaded)
            if asked["op"] == "encode":
                made, behind = encode(loaded, asked, blob)
            else:
                skip = asked["skip_special"]
                made = {"texts": loaded.tokenizer.decode_batch(asked["ids"], skip_special_tokens=skip)}
        except RefusalError as why:
            made = {"error": str(why)}
        except Exception as why:  # the package raises nothing more specific; its message names the fault
            made = {"error": f"the tokenizer refuses it: {why}"}
        head = json.dumps(made).encode()
        answers.write(_SIZES.pack(len(head), len(behind)) + head + behind)
        answers.flush()


def main() -> None:
    """Serve on standard input until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the gateway may still drain
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a core for each helper
    with os.fdopen(os.dup(0), "rb") as source, os.fdopen(os.dup(0), "wb") as answers:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            serve(source, answers)


if __name__ == "__main__":
    main()
