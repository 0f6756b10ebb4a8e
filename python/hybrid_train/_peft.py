"""Modules of PEFT: the names of their base model's tensors, and adapters of a base model on the meta device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from ._units import swap
from .errors import InputError

_PREFIX = "base_model.model."
_INITIAL = (True, "gaussian")  # what PEFT computes without the weights of the base model


def is_adapted(module: Any) -> bool:
    return hasattr(module, "peft_config") and hasattr(module, "base_model")


def base_name(name: str, adapters: Any) -> str:
    """The name that a tensor of the base model has in its own files."""
    name = name.removeprefix(_PREFIX)
    for part in ("base_layer", "original_module", *(f"modules_to_save.{one}" for one in adapters)):
        name = name.replace(f".{part}.", ".")
    return name


def must_have_a_base(module: Any) -> None:
    """Before the files of a base model are read."""
    for adapter, config in module.peft_config.items():
        if config.is_prompt_learning:
            raise InputError(
                f"adapter {adapter} is a {type(config).__name__}, which computes prompts and is no part of the layers; "
                "load is for adapters in layers, such as LoRA. Load the base model before get_peft_model, and use "
                "blocks=True"
            )


def _parts_of(layer: Any, adapter: str) -> Iterator[Any]:
    for name in layer.adapter_layer_names:
        part = getattr(layer, name, {})
        if adapter in part:
            yield from part[adapter].parameters() if hasattr(part[adapter], "parameters") else [part[adapter]]


def make_adapters(module: Any) -> None:
    """PEFT puts adapters beside their layers. Those of LoRA on the meta device get memory and PEFT's initial values."""
    for layer in module.modules():
        for adapter in layer.scaling if hasattr(layer, "reset_lora_parameters") else ():
            missing = [p for p in _parts_of(layer, adapter) if p.is_meta]
            if not missing:
                continue
            initial = module.peft_config[adapter].init_lora_weights
            if initial not in _INITIAL:
                raise InputError(
                    f"adapter {adapter} has init_lora_weights={initial!r}, but the base model is on the meta device; "
                    "use True or 'gaussian', or load the base model before get_peft_model"
                )
            for p in missing:
                swap(p, torch.nn.Parameter(torch.full_like(p, math.nan, device="cpu"), p.requires_grad))
            layer.reset_lora_parameters(adapter, initial)
            if any(p.isnan().any() for p in _parts_of(layer, adapter)):
                raise InputError(
                    f"adapter {adapter} has parameters that begin with the weights of the base model (DoRA), which is on "
                    "the meta device; load the base model before get_peft_model"
                )
