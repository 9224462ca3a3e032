"""Makes what the programs read, without a network: token shards and a tokenizer of 1,024 tokens.

    python make_data.py DIR

Runs in the programs' environment: needs numpy and sentencepiece. Values are random, as only sizes
matter to memory. A shard is 256 little-endian int32 (a magic number, the version, the number of
tokens, zeros), and the tokens as uint16. The validation shard has as many tokens as rank 0 of 8
takes in two full batches; the real one has 62 million, which take the same memory for longer.
"""

import random
import string
import sys
from pathlib import Path

import numpy as np
import sentencepiece

VOCABULARY = 1024
TRAINING_TOKENS = 20_000_000
VALIDATION_TOKENS = 2 * 524_288
MAGIC, VERSION, HEADER_LENGTH = 20240520, 1, 256


def write_shard(path: Path, num_tokens: int) -> None:
    """Writes a shard of random tokens."""
    header = np.zeros(HEADER_LENGTH, "<i4")
    header[:3] = MAGIC, VERSION, num_tokens
    tokens = np.random.default_rng(0).integers(1, VOCABULARY - 1, num_tokens, dtype=np.uint16)
    with path.open("wb") as file:
        header.tofile(file)
        tokens.astype("<u2").tofile(file)


def write_tokenizer(directory: Path) -> None:
    """Trains a tokenizer on random words."""
    generator = random.Random(0)
    words = [
        "".join(generator.choices(string.ascii_lowercase, k=generator.randint(2, 9)))
        for _ in range(20_000)
    ]
    text = directory / "text.txt"
    lines = (" ".join(generator.choices(words, k=20)) for _ in range(20_000))
    text.write_text("\n".join(lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(directory / "tokenizer"), vocab_size=VOCABULARY,
        model_type="bpe", byte_fallback=True, character_coverage=1.0, minloglevel=2,
    )  # fmt: skip


def main() -> None:
    """Writes everything, unless it is there."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / "tokenizer.model").exists():
        return
    write_shard(directory / "fineweb_train_000000.bin", TRAINING_TOKENS)
    write_shard(directory / "fineweb_val_000000.bin", VALIDATION_TOKENS + 1)
    write_tokenizer(directory)


if __name__ == "__main__":
    main()
