import torch
from torch import nn

batch_size = 8
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
net = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
for _ in range(3):
    loss = net(torch.randn(batch_size, 512, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
