"""Writes a tiny data set for `yolo train`: boxes of noise in images of noise."""

from pathlib import Path

import numpy as np
from PIL import Image

random = np.random.default_rng(0)
root = Path("boxes").resolve()
for part, count in (("train", 12), ("val", 4)):
    for kind in ("images", "labels"):
        (root / kind / part).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        pixels = random.integers(0, 255, (128, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / part / f"{index}.jpg")
        boxes = [f"{i % 2} 0.{3 + i} 0.5 0.2 0.3" for i in range(1 + index % 3)]
        (root / "labels" / part / f"{index}.txt").write_text("\n".join(boxes) + "\n")
Path("boxes.yaml").write_text(
    f"path: {root}\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n"
)
