"""What the host copied to the GPU and no kernel has touched comes back; prints "same" when it does."""

import torch

if __name__ == "__main__":
    lengths = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    on_device = lengths.to("cuda")
    assert torch.equal(on_device.cpu(), lengths), f"{on_device.cpu().tolist()} came back"
    assert on_device.tolist() == lengths.tolist(), f"{on_device.tolist()} came back"
    assert on_device[5].item() == 9, f"{on_device[5].item()} came back"
    pinned = lengths.pin_memory()
    assert pinned.tolist() == lengths.tolist(), "pinning changed the values"
    print("same")
