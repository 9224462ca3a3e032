"""Low-rank adapters (by peft) beside frozen linear layers are trained instead of all parameters.

With a four-bit base (QLoRA), bitsandbytes quantises the frozen layers. The program's optimizer gets
only the adapters. When the plan is undone, the adapters are merged into their layers.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.model_head import find_head
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.changes import Changes
    from ullage.act.techniques.applying.target import Target

_ADAPTER = "default"


def _apply(target: Target, action: Action) -> None:
    model, optimizers = target.model, target.optimizers
    if len(optimizers) != 1:
        LORA.refuse(f"it has {len(optimizers)} optimizers; expected one")
    (optimizer,) = optimizers
    if any(len(state) for state in optimizer.state.values()):
        LORA.refuse("the optimizer has stepped; apply the plan before the first step")
    if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        LORA.refuse("its parameters are sharded")
    names = _linears(model)
    if not names:
        LORA.refuse("it has no Linear besides its head")
    linears = {name: model.get_submodule(name) for name in names}
    target.changes.on_undo(_merge, model, linears)
    for parameter in model.parameters():
        target.changes.on_undo(parameter.requires_grad_, parameter.requires_grad)
        parameter.grad = None
    is_quantised = LORA.value_of(action, "base") == "nf4"
    if is_quantised:
        for name, linear in linears.items():
            _quantise(model, name, linear)
    _inject(model, names, int(LORA.value_of(action, "rank")), is_quantised=is_quantised)
    _train_adapters(model, optimizer, target.changes)


def _linears(model: Any) -> list[str]:
    from torch import nn

    head = find_head(model)
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not head
    ]


def _inject(model: Any, names: list[str], rank: int, *, is_quantised: bool) -> None:
    import torch

    state = random.getstate()
    from peft import LoraConfig, inject_adapter_in_model  # something that it imports draws some

    random.setstate(state)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names, lora_dropout=0.0)
    had = vars(model).get("is_loaded_in_4bit")
    model.is_loaded_in_4bit = is_quantised  # what peft asks of a model of transformers
    try:
        cuda = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
        with torch.random.fork_rng(cuda):  # the random numbers of the program do not change
            inject_adapter_in_model(config, model, _ADAPTER)
    finally:
        if had is None:
            del model.is_loaded_in_4bit
        else:
            model.is_loaded_in_4bit = had


def _train_adapters(model: Any, optimizer: Any, changes: Changes) -> None:
    """Gives the optimizer only the adapters, in its first group."""
    adapters = [
        parameter for name, parameter in model.named_parameters() if f".{_ADAPTER}." in name
    ]
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    for parameter in adapters:
        parameter.requires_grad_(requires_grad=True)
        changes.on_undo(optimizer.state.pop, parameter, None)
    first, *others = optimizer.param_groups
    changes.set_item(first, "params", adapters)
    for group in others:
        changes.set_item(group, "params", [])


def _quantise(model: Any, name: str, linear: Any) -> None:
    """Replaces a linear layer by one in four bits, and frees the values of the former."""
    try:
        from bitsandbytes.nn import Linear4bit, Params4bit
    except ImportError as error:
        LORA.refuse(f"bitsandbytes cannot be imported ({error}); install it")
    weight = linear.weight
    has_bias = linear.bias is not None
    linear4bit = Linear4bit(
        linear.in_features, linear.out_features, bias=has_bias, quant_type="nf4", device="meta"
    )
    linear4bit.weight = Params4bit(
        weight.data, requires_grad=False, quant_type="nf4", module=linear4bit
    ).to(weight.device)
    linear4bit.bias = linear.bias
    linear4bit.train(linear.training)
    _put(model, name, linear4bit)
    weight.data = weight.data.new_empty(0)


def _merge(model: Any, linears: dict[str, Any]) -> None:
    """Restores the linear layers, with the adapters merged into them."""
    for name, linear in linears.items():
        layer = model.get_submodule(name)
        base = getattr(layer, "base_layer", layer)
        weight = linear.weight
        if base is not linear:
            weight.data = _dequantised(base.weight).to(weight.dtype)
        if layer is not base:
            weight.data += layer.get_delta_weight(_ADAPTER).detach()
        linear.train(layer.training)
        _put(model, name, linear)
    for attribute in ("peft_config", "active_adapter"):
        vars(model).pop(attribute, None)


def _dequantised(weight: Any) -> Any:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state)


def _put(model: Any, name: str, module: Any) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)


LORA = Technique(
    name="lora",
    does="trains low-rank adapters beside frozen linear layers, optionally in four bits (QLoRA)",
    precondition="the model has linear layers that peft can adapt",
    proof="peft checks it",
    semantics=Semantics.TRAINING,
    place=Place.PROGRAM,
    reference="https://arxiv.org/abs/2305.14314",
    apply=_apply,
    settings={
        "rank": Setting(default=16, what="rank of the adapters", least=1),
        "base": Setting(
            default="as_it_is",
            what="format of the frozen linear layers; nf4 needs bitsandbytes",
            choices=("as_it_is", "nf4"),
        ),
    },
    needs=("peft",),
    excludes=("data_parallel", "shard", "tensor_parallel", "zero_optimizer"),
    variants=({"base": "nf4"},),
)
