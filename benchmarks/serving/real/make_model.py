"""Makes a folder of a model for a server with dummy weights: its configuration and a tokenizer.

    python make_model.py CONFIG.json MODELS/NAME      # and MODELS/words.txt, once

The tokenizer is trained on made-up words, and filled up to the model's vocabulary, so that to
tokenize takes what it takes with a real one of its kind. Needs tokenizers.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any, Final

_LETTERS: Final = "etaoinshrdlucmfwypvbgkjqxz"
_NUM_WORDS: Final = 30_000
_NUM_MERGED: Final = 20_000


def make_lines() -> list[str]:
    """Lines of made-up words, some of them frequent; the same each time."""
    rng = random.Random(0)
    letters = range(len(_LETTERS), 0, -1)
    words = [
        "".join(rng.choices(_LETTERS, weights=letters, k=rng.randint(2, 9)))
        for _ in range(_NUM_WORDS)
    ]
    frequencies = [1 / (rank + 10) for rank in range(_NUM_WORDS)]
    return [" ".join(rng.choices(words, weights=frequencies, k=200)) for _ in range(3000)]


def make_tokenizer(lines: list[str], vocab_size: int) -> dict[str, Any]:
    """Byte-level BPE with so many tokens; those beyond the trained ones stand in no text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_MERGED, show_progress=False, special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(lines, trainer)
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    vocabulary = document["model"]["vocab"]
    for number in range(len(vocabulary), vocab_size):
        vocabulary[f"\u0120w{number}"] = number
    return document


def main() -> None:
    """Makes one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    config = json.loads(args.config.read_text(encoding="utf-8"))
    lines = make_lines()
    args.folder.mkdir(parents=True)
    kinds = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
    }  # fmt: skip
    tokenizer = make_tokenizer(lines, config["vocab_size"])
    for name, document in (
        ("config", config), ("tokenizer", tokenizer), ("tokenizer_config", kinds),
    ):  # fmt: skip
        (args.folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    (args.folder.parent / "words.txt").write_text("\n".join(lines[:400]), encoding="utf-8")


if __name__ == "__main__":
    main()
