"""LoRA of peft in a loop of one's own: a frozen base, adapters merged at the end."""

import torch
from llama import llama
from peft import LoraConfig, get_peft_model
from tiny import sentences, tokenizer

torch.manual_seed(0)
words = tokenizer()
model = llama(words).to("cuda", torch.bfloat16)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"])
model = get_peft_model(model, config)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 6)
texts = sentences(24, 20, 60)
for step in range(6):
    batch = words(texts[step * 4 : step * 4 + 4], padding=True, return_tensors="pt").to("cuda")
    batch.pop("token_type_ids", None)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    loss = model(**batch, labels=labels).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f} norm {norm.item():.4f}")
merged = model.merge_and_unload()
prompt = words("word3 word4", return_tensors="pt")["input_ids"].cuda()
print(merged.generate(input_ids=prompt, max_new_tokens=8, do_sample=False).shape)
