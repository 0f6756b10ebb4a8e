"""The autograd function of chunked_cross_entropy."""

from __future__ import annotations

from typing import Any

import torch

_PIECE = 1 << 24  # elements that are converted at a time


def _loss_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, is_used: torch.Tensor, scale: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of losses, and the gradient of `scale` times it, in the memory of the logits (n, V).

    The gradient is the softmax, minus one at the label. All operations here are deterministic on a card, too.
    """
    index = labels.where(is_used, 0)[:, None]
    total = logits.logsumexp(1, keepdim=True)
    loss = (total - logits.gather(1, index)).where(is_used[:, None], 0).sum()
    softmax = logits.sub_(total).exp_()
    softmax.scatter_(1, index, softmax.gather(1, index) - 1)
    return loss, softmax.mul_(torch.where(is_used, scale, 0.0)[:, None])


def _scaled(gradient: torch.Tensor | None, factor: torch.Tensor) -> torch.Tensor | None:
    """The gradient times the factor, in its memory. Products are rounded once, so pieces are computed in fp32."""
    if gradient is not None:
        rows = max(_PIECE // max(gradient.shape[1], 1), 1)
        for first in range(0, len(gradient), rows):
            piece = gradient[first : first + rows]
            piece.copy_(piece.float() * factor)
    return gradient


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,  # (n, C)
        weight: torch.Tensor,  # (V, C)
        labels: torch.Tensor,  # (n)
        chunks: int,
        ignore_index: int,
        is_mean: bool,
        needs: tuple[bool, bool],
    ) -> torch.Tensor:
        is_used = labels != ignore_index
        scale: Any = 1 / is_used.sum().float() if is_mean else 1.0
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        to_hidden = torch.empty_like(hidden) if needs[0] else None
        to_weight = torch.zeros_like(weight) if needs[1] else None
        size = -(-len(labels) // chunks)
        for first in range(0, len(labels), size):
            part = slice(first, first + size)
            logits = (hidden[part] @ weight.t()).float()
            part_loss, d = _loss_and_gradient(logits, labels[part], is_used[part], scale)
            loss += part_loss
            d = d.to(weight.dtype)
            if to_hidden is not None:
                torch.mm(d, weight, out=to_hidden[part])
            if to_weight is not None:
                to_weight.addmm_(d.t(), hidden[part])
        ctx.gradients = to_hidden, to_weight
        loss *= scale
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, factor: torch.Tensor) -> Any:
        if ctx.gradients is None:
            raise RuntimeError("chunked_cross_entropy has given its gradients already; compute the loss again")
        gradients, ctx.gradients = ctx.gradients, None
        out = [_scaled(g, factor) for g in gradients]
        return (*out, None, None, None, None, None)


def loss_of(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    chunks: int | None,
    ignore_index: int,
    reduction: str,
) -> torch.Tensor:
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1).to(hidden.device)
    chunks = chunks or -(-weight.shape[0] // weight.shape[1])
    needs = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight))
    with torch.autocast(kind, enabled=False):
        count = min(chunks, max(len(labels), 1))
        out: torch.Tensor = _Loss.apply(hidden, weight, labels, count, ignore_index, reduction == "mean", needs)
        return out
