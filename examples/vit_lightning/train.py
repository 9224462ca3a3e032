"""A vision transformer (timm's ViT-S/16) trained by Lightning: bf16-mixed, AdamW, cosine schedule.

Everything is Lightning's own: the Trainer places the model, casts, clips gradients and calls the
optimizer.

    python examples/vit_lightning/train.py --batch-size 128
    ullage run --gpu rtx-4090 -- examples/vit_lightning/train.py --batch-size 128
"""

import argparse

import lightning
import timm
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 1000


class RandomImages(Dataset[tuple[Tensor, int]]):
    """Made-up pictures of 224 x 224 pixels."""

    def __init__(self, num_images: int) -> None:
        self.num_images = num_images

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 224, 224, generator=generator), index % NUM_CLASSES


class Classifier(lightning.LightningModule):
    """A network from timm, its loss and its optimizer."""

    def __init__(self, network: str, learning_rate: float) -> None:
        super().__init__()
        self.network = timm.create_model(network, num_classes=NUM_CLASSES)
        self.learning_rate = learning_rate

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels, label_smoothing=0.1)
        self.print(f"step {self.global_step}  loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self) -> dict:
        """AdamW, its learning rate along a cosine."""
        optimizer = torch.optim.AdamW(self.parameters(), self.learning_rate, weight_decay=0.05)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def main() -> None:
    """Train for a few steps; one line per step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="vit_small_patch16_224")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    loader = DataLoader(
        RandomImages(args.steps * args.batch_size),
        args.batch_size,
        num_workers=args.workers,
        pin_memory=True,
    )
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=args.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(args.network, args.lr), loader)


if __name__ == "__main__":
    main()
