"""pytorch-forecasting's temporal fusion transformer under Lightning, then predictions."""

import lightning
import numpy as np
import pandas as pd
from pytorch_forecasting import QuantileLoss, TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import GroupNormalizer

lightning.seed_everything(42)
random = np.random.default_rng(0)
data = pd.DataFrame(
    {
        "time": np.tile(np.arange(60), 4),
        "series": np.repeat(["a", "b", "c", "d"], 60),
        "value": random.normal(10, 2, 240).astype(np.float32),
        "price": random.normal(0, 1, 240).astype(np.float32),
    }
)
training = TimeSeriesDataSet(
    data[data.time < 54], time_idx="time", target="value", group_ids=["series"],
    max_encoder_length=24, max_prediction_length=6, static_categoricals=["series"],
    time_varying_known_reals=["time", "price"], time_varying_unknown_reals=["value"],
    target_normalizer=GroupNormalizer(groups=["series"]), add_relative_time_idx=True,
    add_target_scales=True, add_encoder_length=True,
)  # fmt: skip
validation = TimeSeriesDataSet.from_dataset(training, data, predict=True, stop_randomization=True)
loaders = (
    training.to_dataloader(train=True, batch_size=32, num_workers=0),
    validation.to_dataloader(train=False, batch_size=32, num_workers=0),
)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="gpu", devices=1, gradient_clip_val=0.1, logger=False,
    enable_progress_bar=False, enable_checkpointing=False, limit_train_batches=4,
)  # fmt: skip
model = TemporalFusionTransformer.from_dataset(
    training, learning_rate=0.03, hidden_size=16, attention_head_size=2, dropout=0.1,
    hidden_continuous_size=8, loss=QuantileLoss(), log_interval=0,
)  # fmt: skip
trainer.fit(model, *loaders)
print({name: float(value) for name, value in trainer.callback_metrics.items()})
