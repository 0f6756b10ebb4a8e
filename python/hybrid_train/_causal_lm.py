"""The chunked loss in transformers' language models: their logits never exist at once if labels are given.

Their forward computes logits with lm_head and passes them to loss_function. Here lm_head returns a stand-in for the
logits, and loss_function computes the loss from the hidden states that it has. A model that does anything else with its
logits (a soft cap, a scale) uses the stand-in as a tensor; then it is run again, and always, in its own way.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable

import torch

from ._blocks import Unit
from ._chunked import loss_and_gradients, scaled
from ._units import Units
from .chunked import chunked_cross_entropy


class _IsUsed(Exception):
    """The model needs the logits themselves."""


def _needs_logits(*_: Any, **__: Any) -> Any:
    raise _IsUsed


class _NoLogits:
    """Stands for the logits of `hidden`."""

    hidden: Any

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden

    __getattr__ = __torch_function__ = _needs_logits


for _name in ("getitem", "add", "sub", "mul", "truediv", "matmul", "neg", "iter", "len", "bool"):
    setattr(_NoLogits, f"__{_name}__", _needs_logits)
for _name in ("add", "sub", "mul", "truediv", "matmul"):
    setattr(_NoLogits, f"__r{_name}__", _needs_logits)


class _HeadLoss(torch.autograd.Function):
    """The loss of a head that is a unit. Its gradients are computed with it, so the head runs once."""

    @staticmethod
    def forward(ctx: Any, owner: tuple[Units, Unit, Any], _: Any, hidden: Any, *how: Any) -> Any:
        """The weight is no argument: autograd would take it for a tensor outside of blocks."""
        units, unit, weight = ctx.owner = owner
        ctx.number = units.pass_number
        with units.held(unit, units.before(units.reached(unit))), torch.autocast(hidden.device.type, enabled=False):
            loss, *ctx.gradients = loss_and_gradients(hidden, weight.to(hidden.dtype), *how)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, factor: torch.Tensor) -> Any:
        units, unit, weight = ctx.owner
        units.must_be_in_backward(unit, ctx.number)
        (to_hidden, to_weight), ctx.gradients = [scaled(g, factor) for g in ctx.gradients], None
        if to_weight is not None:
            units.add(unit, [to_weight if p is weight else None for p in unit.trained])
        return None, None, to_hidden, None, None, None, None, None


class CausalLM:
    """A model of transformers with a chunked loss. `remove` gives it its own functions back."""

    def __init__(self, model: Any, units: Units) -> None:
        self._model, self._units = model, units
        self._is_active = False
        self._is_usual = True  # nothing but the loss uses the logits
        self._own = {one: one.__dict__.get("forward") for one in (model, model.lm_head)}
        self._forward, self._head, self._loss = model.forward, model.lm_head.forward, model.loss_function
        model.forward = functools.update_wrapper(functools.partial(self._run), self._forward)
        model.lm_head.forward = functools.update_wrapper(functools.partial(self._logits), self._head)
        model.loss_function = self._loss_of

    def remove(self) -> None:
        for one, forward in self._own.items():
            if forward is None:
                del one.forward
            else:
                one.forward = forward
        del self._model._loss_function

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("labels") is None or not self._is_usual:
            return self._forward(*args, **kwargs)
        devices = [self._units.device] if self._units.device.type == "cuda" else []
        try:
            self._is_active = True
            with torch.random.fork_rng(devices=devices):
                out = self._forward(*args, **kwargs)
                after = torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in devices]
        except _IsUsed:
            self._is_active = self._is_usual = False
            return self._forward(*args, **kwargs)
        finally:
            self._is_active = False
        torch.set_rng_state(after[0])
        for device, state in zip(devices, after[1]):
            torch.cuda.set_rng_state(state, device)
        return _without_logits(out)

    def _logits(self, hidden: Any) -> Any:
        return _NoLogits(hidden) if self._is_active else self._head(hidden)

    def _loss_of(self, logits: Any, labels: Any, vocab_size: int, **more: Any) -> Any:
        if not isinstance(logits, _NoLogits):
            return self._loss(logits=logits, labels=labels, vocab_size=vocab_size, **more)
        head = self._model.lm_head
        if vocab_size != head.out_features:
            raise _IsUsed
        ignore, items, shifted = (
            more.get("ignore_index", -100),
            more.get("num_items_in_batch"),
            more.get("shift_labels"),
        )
        if shifted is None:
            shifted = torch.nn.functional.pad(labels, (0, 1), value=ignore)[..., 1:]

        reduction, targets = "mean" if items is None else "sum", shifted.reshape(logits.hidden.shape[:-1])
        unit = self._units.unit_of(head)
        if unit is not None and torch.is_grad_enabled():
            out = self._loss_with_gradients(unit, logits.hidden, targets, ignore, reduction == "mean")
        else:

            def loss(hidden: Any, targets: Any) -> Any:
                return chunked_cross_entropy(hidden, head.weight, targets, None, ignore, reduction)

            run: Callable[..., Any] = loss if unit is None else self._units.wrapped(unit, loss)
            out = run(logits.hidden, targets)
        if items is None:
            return out
        return out / (items.to(out.device) if isinstance(items, torch.Tensor) else items)

    def _loss_with_gradients(self, unit: Unit, hidden: Any, targets: Any, ignore: int, is_mean: bool) -> Any:
        weight, dtype = self._model.lm_head.weight, self._units.autocast_type()
        hidden = hidden.reshape(-1, hidden.shape[-1])
        if dtype is not None:
            hidden = hidden.to(dtype)
        needs = hidden.requires_grad, weight.requires_grad
        targets = targets.reshape(-1).to(hidden.device)
        return _HeadLoss.apply(
            (self._units, unit, weight), self._units.anchor, hidden, targets, None, ignore, is_mean, needs
        )


def _without_logits(out: Any) -> Any:
    if isinstance(out, tuple):
        return tuple(None if isinstance(x, _NoLogits) else x for x in out)
    return dataclasses.replace(out, logits=None)


def find_models(module: Any) -> list[Any]:
    """Language models of transformers with the usual head and loss."""
    return [m for m in module.modules() if _is_usual(m)]


def _is_usual(module: Any) -> bool:
    head, loss = module._modules.get("lm_head"), getattr(module, "loss_function", None)
    return (
        type(head) is torch.nn.Linear
        and head.bias is None
        and getattr(loss, "__name__", "") == "ForCausalLMLoss"
        and str(getattr(loss, "__module__", "")).startswith("transformers.")
    )
