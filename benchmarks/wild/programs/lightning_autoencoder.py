"""Lightning's first example, an autoencoder: sanity check, validation, early stopping."""

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 16))
        self.decoder = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 784))
        self.save_hyperparameters()

    def loss(self, batch):
        x = batch[0].flatten(1)
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch, _index):
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _index):
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


lightning.seed_everything(0)
images = TensorDataset(torch.rand(256, 1, 28, 28))
trainer = lightning.Trainer(
    max_epochs=2, accelerator="gpu", devices=1, precision="16-mixed", gradient_clip_val=1.0,
    logger=False, enable_progress_bar=False, log_every_n_steps=1,
    callbacks=[EarlyStopping("val_loss", patience=3), ModelCheckpoint("out", monitor="val_loss")],
)  # fmt: skip
loaders = DataLoader(images, 64, shuffle=True), DataLoader(images, 64)
trainer.fit(AutoEncoder(), *loaders)
print({name: float(value) for name, value in trainer.callback_metrics.items()})
