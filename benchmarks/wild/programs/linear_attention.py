"""flash-linear-attention: gated linear attention trained with its own Triton kernels."""

import torch
from fla.models import GLAConfig, GLAForCausalLM

torch.manual_seed(0)
config = GLAConfig(
    hidden_size=256, num_hidden_layers=2, num_heads=2, vocab_size=1000, intermediate_size=512,
    fuse_cross_entropy=False, fuse_norm=True, fuse_swiglu=True, use_cache=False,
)  # fmt: skip
model = GLAForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    ids = torch.randint(0, 1000, (4, 256), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}")
