"""Graph attention on a citation graph, as PyG's gat.py: the test accuracy of the best epoch.

After the documentation of PyTorch Geometric; the graph is made up.
"""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv


class GAT(torch.nn.Module):
    def __init__(self, inputs, hidden, classes, heads):
        super().__init__()
        self.conv1 = GATConv(inputs, hidden, heads, dropout=0.6)
        self.conv2 = GATConv(hidden * heads, classes, heads=1, concat=False, dropout=0.6)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.6, training=self.training)
        x = F.elu(self.conv1(x, edge_index))
        return self.conv2(F.dropout(x, p=0.6, training=self.training), edge_index)


torch.manual_seed(0)
masks = torch.randperm(2708)
data = Data(
    x=torch.rand(2708, 1433), edge_index=torch.randint(0, 2708, (2, 10_556)),
    y=torch.randint(0, 7, (2708,)), train_mask=masks < 140,
    val_mask=(masks >= 140) & (masks < 640), test_mask=masks >= 1708,
).to("cuda")  # fmt: skip
model = GAT(1433, 8, 7, heads=8).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index).argmax(dim=-1)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


best_val_acc = 0
for epoch in range(1, 9):
    loss = train()
    train_acc, val_acc, tmp_test_acc = test()
    if val_acc > best_val_acc:
        best_val_acc = val_acc
        test_acc = tmp_test_acc
    print(f"epoch {epoch} loss {loss:.4f} train {train_acc:.4f} val {val_acc:.4f} {test_acc:.4f}")
