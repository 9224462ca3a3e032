"""torchtune: the pieces of its LoRA recipe for one device, on a small Llama."""

import torch
from torchtune.models.llama3_1 import lora_llama3_1
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.peft import get_adapter_params, get_merged_lora_ckpt, set_trainable_params
from torchtune.training import get_cosine_schedule_with_warmup

torch.manual_seed(0)
with torch.device("cuda"):
    model = lora_llama3_1(
        ["q_proj", "v_proj"], apply_lora_to_mlp=True, vocab_size=512, num_layers=3, num_heads=8,
        num_kv_heads=4, embed_dim=256, max_seq_len=512, intermediate_dim=512, lora_rank=8,
        lora_alpha=16,
    )  # fmt: skip
set_trainable_params(model, get_adapter_params(model))
loss_fn = CEWithChunkedOutputLoss()
model.set_num_output_chunks(loss_fn.num_output_chunks)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), fused=True)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=4)
running, tokens = 0, 0
for step in range(4):
    ids = torch.randint(0, 512, (2, 128), device="cuda")
    labels = torch.hstack((ids[..., 1:], torch.full_like(ids[..., :1], loss_fn.ignore_index)))
    count = (labels != loss_fn.ignore_index).sum()
    loss = loss_fn(model(ids), labels) * count
    running, tokens = running + loss, tokens + count
    loss.backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= 1 / tokens
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    scheduler.step()
    print(f"step {step} loss {(running / tokens).item():.4f} norm {norm:.4f}")
    running, tokens = 0, 0
merged = get_merged_lora_ckpt(model.state_dict(), rank=8, alpha=16)
print(len(merged))
