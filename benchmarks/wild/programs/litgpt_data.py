"""Writes what `litgpt finetune_lora` reads: a checkpoint, a tokenizer, questions."""

import json
from pathlib import Path

import torch
from litgpt import GPT, Config
from litgpt.utils import save_config
from tokenizers import Tokenizer, models, pre_tokenizers

torch.manual_seed(0)
directory = Path("checkpoints/made/up")
directory.mkdir(parents=True, exist_ok=True)
config = Config.from_name(
    "pythia-14m", block_size=256, n_layer=3, n_embd=128, n_head=4, vocab_size=512,
    padded_vocab_size=512, intermediate_size=256,
)  # fmt: skip
torch.save(GPT(config).state_dict(), directory / "lit_model.pth")
save_config(config, directory)
vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"word{i}": i + 3 for i in range(500)}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.save(str(directory / "tokenizer.json"))
settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
(directory / "tokenizer_config.json").write_text(json.dumps(settings))
rows = [
    {"instruction": f"word{i} word{i + 1}", "input": "", "output": "word3 word4 word5"}
    for i in range(40)
]
Path("questions.json").write_text(json.dumps(rows))
