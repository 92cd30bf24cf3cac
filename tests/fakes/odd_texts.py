"""Texts as nobody writes them, the same in every run."""

from __future__ import annotations

import random

ALPHABET = "abcdefghij  ,.!?-'\t\nÀéîõüßœΩжש中日🙂\u0301\u200d[]#"


def odd_texts(count: int) -> list[str]:
    chance = random.Random(7)
    return [f"{number} " + "".join(chance.choices(ALPHABET, k=chance.randint(1, 30))) for number in range(count)]
