"""The loss of a language model's head, computed in parts of the tokens, so that all logits never exist at once."""

from __future__ import annotations

from typing import Any

from .errors import InputError

__all__ = ["chunked_cross_entropy"]


def chunked_cross_entropy(
    hidden: Any,
    weight: Any,
    labels: Any,
    chunks: int | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """The cross-entropy of `hidden @ weight.T` and `labels`, as torch.nn.functional.cross_entropy computes it.

    Losses and gradients are computed together, chunk by chunk, so memory is needed for the logits of one chunk only.

    hidden: (..., C); weight: (V, C); labels: (...), already shifted
    chunks: number of chunks; None: so many that a chunk has at most 2^27 logits (512 MiB)
    reduction: "mean" or "sum"
    """
    from ._chunked import loss_of

    if reduction not in ("mean", "sum"):
        raise InputError(f"reduction is {reduction!r}; expected 'mean' or 'sum'")
    if hidden.shape[:-1] != labels.shape or hidden.shape[-1] != weight.shape[-1] or weight.ndim != 2:
        raise InputError(
            f"hidden has shape {tuple(hidden.shape)}, weight {tuple(weight.shape)} and labels {tuple(labels.shape)}; "
            "expected (..., C), (V, C) and (...)"
        )
    if chunks is not None and chunks < 1:
        raise InputError(f"chunks is {chunks}; expected at least 1")
    return loss_of(hidden, weight, labels, chunks, ignore_index, reduction)
