"""Terms of a loss one after the other, each made again for its gradient: memory for one of them is enough."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Piece = TypeVar("Piece")


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor, Any], Tensor], pieces: Sequence[Any]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function, ctx.pieces = function, pieces
        return torch.stack([function(x, piece) for piece in pieces])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        for grad, piece in zip(grads[0], ctx.pieces, strict=True):
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                # Not as the gradient to begin with, for which torch would load its compiler.
                total += torch.autograd.grad(grad * ctx.function(leaf, piece), leaf)[0]
        return total, None, None


def in_pieces(function: Callable[[Tensor, Piece], Tensor], x: Tensor, pieces: Sequence[Piece]) -> Tensor:
    """`function(x, piece)` of all pieces, one number each; gradients are those with respect to x."""
    if len(pieces) == 1:
        return function(x, pieces[0])[None]
    return cast(Tensor, _InPieces.apply(x, function, pieces))  # type: ignore[no-untyped-call]
