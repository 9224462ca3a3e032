"""torchtitan's Llama-3 8B configuration on texts in memory, three steps; started by torchrun."""

import argparse
import sys
import tempfile
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

sys.modules["torchao"] = None  # wanted for float8 alone; its 0.18 does not load on Triton 3.9

from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.llama3 import config_registry

STEPS = 3
WORDS = [f"word{number}" for number in range(1000)]


def write_tokenizer(directory: Path) -> None:
    """One token a word."""
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(directory / "tokenizer.json"))
    config = '{"bos_token": "<s>", "eos_token": "</s>"}'
    (directory / "tokenizer_config.json").write_text(config, encoding="utf-8")


def load_texts(_path: str) -> Dataset:
    """Long texts of known words."""
    return Dataset.from_dict({"text": [" ".join(WORDS * 4)] * 128})


def main() -> None:
    """Three steps of the chosen configuration, with the changes named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="llama3_8b")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--no-graphs", action="store_true")
    args = parser.parse_args()
    DATASETS["words"] = DatasetConfig("words", load_texts, lambda sample: sample["text"])
    config = getattr(config_registry, args.config)()
    config.training.steps = STEPS
    config.training.disable_cuda_graphs = args.no_graphs
    config.parallelism.tensor_parallel_degree = args.tensor_parallel
    config.dataloader.dataset = "words"
    config.metrics.log_freq = 1
    config.metrics.enable_tensorboard = False
    config.profiler.enable_profiling = False
    config.checkpoint.enable = False
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory))
        config.hf_assets_path = config.dump_folder = directory
        trainer = config.build()
        trainer.train()
        trainer.close()


if __name__ == "__main__":
    main()
