"""Llama 3 as torchtitan 0.1.0 has it, the sizes of Llama 2, and a loss that is not compiled."""

from torchtitan.components.loss import cross_entropy_loss
from torchtitan.models.llama3 import TransformerModelArgs, llama3_configs
from torchtitan.protocols.train_spec import TrainSpec, get_train_spec, register_train_spec

CONFIGS = {
    **llama3_configs,
    "llama2-13B": TransformerModelArgs(dim=5120, n_layers=40, n_heads=40),
    "llama2-70B": TransformerModelArgs(
        dim=8192, n_layers=80, n_heads=64, n_kv_heads=8, ffn_dim_multiplier=1.3, multiple_of=4096
    ),
}


def register(name: str) -> None:
    """Registers the model under a name of --model.name."""
    llama3 = get_train_spec("llama3")
    register_train_spec(
        TrainSpec(
            name=name,
            cls=llama3.cls,
            config=CONFIGS,
            parallelize_fn=llama3.parallelize_fn,
            pipelining_fn=llama3.pipelining_fn,
            build_optimizers_fn=llama3.build_optimizers_fn,
            build_lr_schedulers_fn=llama3.build_lr_schedulers_fn,
            build_dataloader_fn=llama3.build_dataloader_fn,
            build_tokenizer_fn=llama3.build_tokenizer_fn,
            build_loss_fn=lambda job_config: cross_entropy_loss,
        )
    )
