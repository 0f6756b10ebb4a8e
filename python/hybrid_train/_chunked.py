"""The loss of a head in chunks of tokens, with its gradients."""

from __future__ import annotations

from typing import Any

import torch

_PIECE = 1 << 24  # elements that are converted at a time
_LOGITS = 1 << 27  # logits of a chunk: larger chunks read the weight and add to its gradient less often


def _logits_to_gradient(
    logits: torch.Tensor, labels: torch.Tensor, is_used: torch.Tensor, scale: Any, wants_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The sum of losses of logits (n, V), and the gradient of `scale` times it, in the type of the logits.

    The gradient is the softmax, minus one at the label. All operations here are deterministic on a card, too. They pass
    over the logits as seldom as torch's own operations allow.
    """
    index = labels.where(is_used, 0)[:, None]
    logs = torch.log_softmax(logits, 1, dtype=torch.float32)
    chosen = logs.gather(1, index)
    loss = -chosen.where(is_used[:, None], 0).sum()
    if not wants_gradient:
        return loss, None
    rows = torch.where(is_used, scale, 0.0)[:, None]
    gradient = torch.mul(logs.exp_(), rows, out=logits)
    return loss, gradient.scatter_(1, index, ((chosen.exp() - 1) * rows).to(gradient.dtype))


def scaled(gradient: torch.Tensor | None, factor: torch.Tensor) -> torch.Tensor | None:
    """The gradient times the factor, in its memory. Products are rounded once, so pieces are computed in fp32."""
    if gradient is not None:
        rows = max(_PIECE // max(gradient.shape[1], 1), 1)
        for first in range(0, len(gradient), rows):
            piece = gradient[first : first + rows]
            piece.copy_(piece.float() * factor)
    return gradient


def loss_and_gradients(
    hidden: torch.Tensor,  # (n, C)
    weight: torch.Tensor,  # (V, C)
    labels: torch.Tensor,  # (n)
    chunks: int | None,
    ignore_index: int,
    is_mean: bool,
    needs: tuple[bool, bool],
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The loss, and its gradients for `hidden` and `weight`, those that are needed."""
    is_used = labels != ignore_index
    scale: Any = 1 / is_used.sum().float() if is_mean else 1.0
    loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
    to_hidden = torch.empty_like(hidden) if needs[0] else None
    to_weight = torch.zeros_like(weight) if needs[1] else None
    chunks = chunks or -(-len(labels) * weight.shape[0] // _LOGITS)
    size = -(-len(labels) // min(chunks, max(len(labels), 1)))
    for first in range(0, len(labels), size):
        part = slice(first, first + size)
        part_loss, d = _logits_to_gradient(
            hidden[part] @ weight.t(), labels[part], is_used[part], scale, wants_gradient=any(needs)
        )
        loss += part_loss
        if to_hidden is not None and d is not None:
            torch.mm(d, weight, out=to_hidden[part])
        if to_weight is not None and d is not None:
            to_weight.addmm_(d.t(), hidden[part])
    loss *= scale
    return loss, to_hidden, to_weight


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *how: Any) -> torch.Tensor:
        loss, *ctx.gradients = loss_and_gradients(*how)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, factor: torch.Tensor) -> Any:
        if ctx.gradients is None:
            raise RuntimeError("chunked_cross_entropy has given its gradients already; compute the loss again")
        gradients, ctx.gradients = ctx.gradients, None
        out = [scaled(g, factor) for g in gradients]
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
    needs = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight))
    with torch.autocast(kind, enabled=False):
        out: torch.Tensor = _Loss.apply(hidden, weight, labels, chunks, ignore_index, reduction == "mean", needs)
        return out
