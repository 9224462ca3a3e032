"""x-transformers' character model: trained with accumulation, validated, then it generates."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from x_transformers import Decoder, TransformerWrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper

torch.manual_seed(0)
model = TransformerWrapper(
    num_tokens=256, max_seq_len=256,
    attn_layers=Decoder(dim=256, depth=4, heads=4, rotary_pos_emb=True, attn_flash=True),
)  # fmt: skip
model = AutoregressiveWrapper(model).cuda()


class Text(Dataset):
    def __init__(self):
        self.data = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 20_000))

    def __getitem__(self, _index):
        start = torch.randint(0, len(self.data) - 257, (1,))
        return self.data[start : start + 257].cuda()

    def __len__(self):
        return 128


loader = iter(DataLoader(Text(), batch_size=4, drop_last=True))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(5):
    model.train()
    for _ in range(2):
        loss = model(next(loader))
        (loss / 2).backward()
    print(f"training loss: {loss.item():.4f}")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        model.eval()
        with torch.no_grad():
            print(f"validation loss: {model(next(loader)).item():.4f}")
model.eval()
prompt = next(loader)[0, :16][None]
sample = model.generate(prompts=prompt, seq_len=16, cache_kv=True)
print(sample.shape)
