"""Lightning: a module, a data loader, a trainer with validation."""

import lightning
import torch
from figures import print_figures
from made_up import Tokens, small_llama
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM

STEPS = 3


class LanguageModel(lightning.LightningModule):
    """A Llama and its AdamW."""

    def __init__(self) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(small_llama())

    def training_step(self, batch: dict[str, Tensor], _index: int) -> Tensor:
        """The loss of a batch."""
        return self.llama(**batch).loss

    def validation_step(self, batch: dict[str, Tensor], _index: int) -> None:
        """Logs the loss of a batch."""
        self.log("loss", self.llama(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over everything."""
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def on_train_end(self) -> None:
        """Afterwards Lightning takes model and optimizer from the GPU."""
        print_figures(self, self.trainer.optimizers[0], num_steps=STEPS)


def main() -> None:
    """Three steps, then validation."""
    model = LanguageModel()
    trainer = lightning.Trainer(
        max_steps=STEPS,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        model,
        DataLoader(Tokens(4 * STEPS, 512), batch_size=4),
        DataLoader(Tokens(4, 512), batch_size=4),
    )


if __name__ == "__main__":
    main()
