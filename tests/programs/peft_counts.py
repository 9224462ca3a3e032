"""How many parameters peft trains of each model; nothing is computed, on the meta device.

Its input is a JSON list of [fields of a config.json, target_modules]; it prints a list of numbers.
A model that peft refuses has its error instead.
"""

import json
import sys
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model

HEADS = {
    "bert": "AutoModelForMaskedLM",
    "clip": "AutoModel",
    "roberta": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
    "whisper": "AutoModelForSpeechSeq2Seq",
}


def count(fields: dict[str, Any], targets: str | list[str]) -> int | str:
    """Of adapters of rank 16."""
    config = transformers.AutoConfig.for_model(
        **{name: value for name, value in fields.items() if name != "quantization_config"}
    )
    head = HEADS.get(config.model_type, "AutoModelForCausalLM")
    if fields.get("architectures", [""])[0].endswith("Model"):
        head = "AutoModel"
    with torch.device("meta"):
        model = getattr(transformers, head).from_config(config, dtype=torch.bfloat16)
        try:
            model = get_peft_model(model, LoraConfig(r=16, target_modules=targets))
        except ValueError as error:
            return str(error)
    return sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad)


if __name__ == "__main__":
    print(json.dumps([count(*row) for row in json.load(sys.stdin)]))
