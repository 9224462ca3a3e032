"""Makes what torchtitan reads, without a network: a text data set and tokenizers of Llama's sizes.

Words are random, as only sizes matter to time and memory. A tokenizer file has a token in base64
and its rank on each line; torchtitan adds 256 special tokens of its own.
"""

from __future__ import annotations

import base64
import json
import random
import string
from pathlib import Path

SPECIAL_TOKENS = 256
VOCABULARIES = {"llama3": 128_256, "llama2": 32_000}
DOCUMENTS, WORDS_OF_A_DOCUMENT = 4_000, 1_200


def make_data(directory: Path) -> None:
    """Writes c4/data.json and tokenizer/NAME.model, unless they are there."""
    generator = random.Random(0)
    text, tokenizers = directory / "c4", directory / "tokenizer"
    if not (text / "data.json").exists():
        text.mkdir(parents=True, exist_ok=True)
        words = [_word(generator, 2, 9) for _ in range(20_000)]
        documents = (
            " ".join(generator.choices(words, k=WORDS_OF_A_DOCUMENT)) for _ in range(DOCUMENTS)
        )
        lines = (json.dumps({"text": document}) for document in documents)
        (text / "data.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizers.mkdir(parents=True, exist_ok=True)
    for name, size in VOCABULARIES.items():
        path = tokenizers / f"{name}.model"
        if not path.exists():
            path.write_text(_ranks(generator, size - SPECIAL_TOKENS), encoding="utf-8")


def _ranks(generator: random.Random, size: int) -> str:
    """A tokenizer file of all bytes and of random words."""
    ranks = {bytes([value]): value for value in range(256)}
    while len(ranks) < size:
        ranks.setdefault(_word(generator, 3, 9).encode(), len(ranks))
    return "".join(f"{base64.b64encode(word).decode()} {rank}\n" for word, rank in ranks.items())


def _word(generator: random.Random, shortest: int, longest: int) -> str:
    letters = generator.choices(string.ascii_lowercase, k=generator.randint(shortest, longest))
    return "".join(letters)
