"""QLoRA: four-bit weights of bitsandbytes, adapters of peft, eight-bit AdamW."""

import bitsandbytes
import torch
from llama import llama
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from tiny import sentences, tokenizer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

torch.manual_seed(0)
words = tokenizer()
llama(words, "bfloat16").to(torch.bfloat16).save_pretrained("base")
config = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)  # fmt: skip
model = AutoModelForCausalLM.from_pretrained("base", quantization_config=config, device_map={"": 0})
model = prepare_model_for_kbit_training(model)
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
model = get_peft_model(model, LoraConfig(r=16, target_modules=targets, task_type="CAUSAL_LM"))
optimizer = bitsandbytes.optim.PagedAdamW8bit(
    (p for p in model.parameters() if p.requires_grad), lr=2e-4
)
texts = sentences(24, 20, 60)
for step in range(4):
    batch = words(texts[step * 4 : step * 4 + 4], padding=True, return_tensors="pt").to("cuda")
    batch.pop("token_type_ids", None)
    loss = model(**batch, labels=batch["input_ids"]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}")
