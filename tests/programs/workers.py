"""A DataLoader with two worker processes and pinned memory; the workers never touch the GPU."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset[Tensor]):
    """Sixty-four vectors of noise."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(1024, generator=torch.Generator().manual_seed(index))


def main() -> None:
    """One epoch of four batches; prints how many came."""
    model = nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    num_batches = 0
    for batch in DataLoader(Noise(), batch_size=16, num_workers=2, pin_memory=True):
        model(batch.cuda(non_blocking=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        num_batches += 1
    print(num_batches)


if __name__ == "__main__":
    main()
