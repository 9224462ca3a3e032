"""What the host copied to the GPU, untouched by kernels, comes back; prints "same" then."""

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
