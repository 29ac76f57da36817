"""Parts of the loss of prototypes, and of sampling, as one kernel each on a GPU, where torch would start dozens.

A step of a small graph takes as long as its kernels are many. Each function here computes what a few lines of
`nn.losses` and of the methods say, forward and backward, and adds in a fixed order (fused.cu). They are used where
`can_fuse` says so; elsewhere those lines serve. Kernels take tensors with a first dimension for runs that take their
steps as one (stacked.py); what is the same for all is there once, with a stride of zero.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ipal.backend.cuda_kernels import kernels

WARP = 32
MOST_SHARED = 48 * 1024
"""Bytes of a block's own memory that every GPU has."""
ROWS_A_BLOCK, THREADS, MOST_THREADS = 4, 128, 1024
FEW_NODES = 4096
"""Among so many, the hardest are found by a block of few threads as fast as by more."""
MOST_HARD = 64
"""Hard examples of a class that are looked for one after the other."""


def can_fuse(*tensors: Tensor) -> bool:
    """Whether tensors are on a GPU that the kernels can be had for, in single precision."""
    return all(tensor.dtype == torch.float32 and has_kernels(tensor.device) for tensor in tensors)


def has_kernels(device: torch.device) -> bool:
    """Whether the kernels can be had for a device."""
    return device.type == "cuda" and kernels("fused.cu", device) is not None


def unit(rows: Tensor) -> Tensor:
    """Rows (number x width) scaled to length one; a row of zeros stays."""
    return _first(_Unit, rows[None])


def contrast(products: Tensor, labels: Tensor, hard_labels: Tensor, first: int, absent: Tensor | None) -> Tensor:
    """Of every row minus the logarithm of its softmax at its label, over the columns that count.

    The first columns, so many, are prototypes, of which `absent` ones do not count. After them come hard examples,
    one for each of `hard_labels`, which count for rows of other labels where theirs is no -1; then what always counts.
    """
    none = torch.empty(first if absent is not None else 0, dtype=torch.bool, device=products.device)
    inputs = (products, labels, hard_labels, none if absent is None else absent)
    return _first(_Contrast, *(one[None] for one in inputs), first)


def hardest(within: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of each row (classes x nodes) from the largest on: nodes, and rows, or -1 for minus infinity."""

    found = _first(_Hardest, within[None], k)
    return found[0], found[1]


def distilled(
    f: Tensor, before: Tensor, chosen: Tensor, lam: Tensor, directions: Tensor, lengths: Tensor, products: Tensor
) -> Tensor:
    """The norm of all changes of affinity of nodes `chosen`, no node twice: `losses.affinity_distillation`.

    `directions` and `lengths` are those of the old prototypes mu, `products` are mu @ directions.T.
    """
    inputs = (f, before, chosen, lam, directions, lengths, products)
    return _first(_Distilled, *(one[None] for one in inputs))


def distilled_fits(classes: int) -> bool:
    """Whether a block's own memory holds what `distilled` needs of so many classes."""
    return _shared(classes) < MOST_SHARED


def inverted(u: Tensor, mass: Tensor, step: Tensor) -> Tensor:
    """Where `u` lies between the entries of an ascending table `mass`, in units of `step`: single precision."""
    found = torch.empty(u.shape, dtype=torch.float32, device=u.device)
    _launch("inverted", -(-u.numel() // THREADS), 1, THREADS, 1, [u, mass, step, found, u.numel(), len(mass)])
    return found


def distinct_places(draws: Tensor, degree: Tensor) -> Tensor:
    """As many different whole numbers below each of `degree` as there are draws between 0 and 1 in its row."""
    number, k = draws.shape
    chosen = torch.empty(number, k, dtype=torch.int64, device=draws.device)
    arguments = [draws, degree.contiguous(), chosen, number, k]
    _launch("distinct_places", -(-number // THREADS), 1, THREADS, 1, arguments)
    return chosen


# ---------------------------------------------------------------------- for autograd, and for many runs


def _first(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """What a function for many runs computes for one, without what it keeps for its gradient."""
    found = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return cast(Tensor, found[0] if isinstance(found, tuple) else found).squeeze(0)


class _OfRuns(torch.autograd.Function):
    """A function of tensors that have a first dimension for runs; so have its results."""

    @classmethod
    def vmap(cls, info: Any, dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        """Of runs side by side, what is the same for all is not copied."""
        side_by_side = []
        for one, dim in zip(inputs, dims, strict=True):
            if isinstance(one, Tensor):
                one = one[None].expand(info.batch_size, *one.shape) if dim is None else one.movedim(dim, 0)
                one = one.reshape(info.batch_size * one.shape[1], *one.shape[2:])
            side_by_side.append(one)
        found = cls.apply(*side_by_side)  # type: ignore[no-untyped-call]
        if isinstance(found, tuple):
            return tuple(one[:, None] for one in found), (0,) * len(found)
        return found[:, None], 0

    @staticmethod
    def keep(ctx: Any, other: Tensor, *tensors: Tensor) -> None:
        """Save what the gradient needs; none goes through the `other` result."""
        ctx.mark_non_differentiable(other)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)


class _Hardest(_OfRuns):
    @staticmethod
    def forward(within: Tensor, k: int) -> Tensor:
        within = within.contiguous()
        batch, classes, number = within.shape
        found = torch.empty(2, batch, classes * k, dtype=torch.int64, device=within.device)
        threads = MOST_THREADS if number > FEW_NODES else 2 * THREADS
        _launch("hardest", classes, batch, threads, 1, [within, *found, number, k], 8 * WARP)
        return found.movedim(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)


class _Unit(_OfRuns):
    @staticmethod
    def forward(rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.contiguous()
        out, scale = torch.empty_like(rows), torch.empty(rows.shape[:-1], dtype=rows.dtype, device=rows.device)
        _launch_rows("unit_rows", scale.numel(), [rows, out, scale, scale.numel(), rows.shape[-1]])
        return out, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        _OfRuns.keep(ctx, output[1], *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> Tensor | None:
        if grad is None:
            return None
        out, scale = ctx.saved_tensors
        found, grad, number = torch.empty_like(out), grad.contiguous(), scale.numel()
        _launch_rows("unit_rows_backward", number, [grad, out, scale, found, number, out.shape[-1]])
        return found


class _Contrast(_OfRuns):
    @staticmethod
    def forward(
        products: Tensor, labels: Tensor, hard_labels: Tensor, absent: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        products = products.contiguous()
        batch, number, _ = products.shape
        loss, total = (torch.empty(batch, number, dtype=products.dtype, device=products.device) for _ in range(2))
        columns = _columns(products, labels, hard_labels, absent, first)
        _launch_rows("contrast", batch * number, [products, loss, total, *columns])
        return loss, total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _OfRuns.keep(ctx, output[1], *inputs[:4], output[1])
        ctx.first = inputs[4]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, None, None, None, None]:
        if grad is None:
            return None, None, None, None, None
        products, labels, hard_labels, absent, total = ctx.saved_tensors
        products, grad = products.contiguous(), grad.contiguous()
        found = torch.empty_like(products)
        columns = _columns(products, labels, hard_labels, absent, ctx.first)
        _launch_rows("contrast_backward", total.numel(), [products, grad, total, found, *columns])
        return found, None, None, None, None


def _columns(products: Tensor, labels: Tensor, hard_labels: Tensor, absent: Tensor, first: int) -> list[Any]:
    """Arguments of the kernels of `contrast`: which columns count."""
    some = [_inner(one) for one in (labels, hard_labels, absent)]
    batch, number, columns = products.shape
    sizes = [batch * number, number, columns, first, hard_labels.shape[1], absent.shape[1]]
    return [*some, *(one.stride(0) for one in some), *sizes]


class _Distilled(_OfRuns):
    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        inputs = tuple(_inner(one) for one in inputs)
        f, _, chosen, _, directions, _, _ = inputs
        (batch, some), (classes, width) = chosen.shape, directions.shape[1:]
        squares = torch.empty(batch, some, dtype=f.dtype, device=f.device)
        rows = torch.empty(batch, some, width, dtype=f.dtype, device=f.device)
        arguments = [*inputs, squares, rows, *(one.stride(0) for one in inputs), some, classes, width]
        _launch("distilled", some, batch, THREADS, 1, arguments, _shared(classes))
        return squares.sum(dim=1).sqrt(), rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        _OfRuns.keep(ctx, output[1], inputs[2], *output)
        ctx.shape = inputs[0].shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 7
        chosen, norm, rows = ctx.saved_tensors
        chosen, grad = _inner(chosen), grad.contiguous()
        batch, some, width = rows.shape
        found = torch.zeros(ctx.shape, dtype=rows.dtype, device=rows.device)
        arguments = [rows, norm, grad, chosen, found, chosen.stride(0), ctx.shape[1], some, width]
        _launch("distilled_backward", some, batch, THREADS, 1, arguments)
        return (found, *(None,) * 6)


# ---------------------------------------------------------------------- starting kernels


def _inner(tensor: Tensor) -> Tensor:
    """Contiguous but for the first dimension."""
    return tensor if tensor.numel() == 0 or tensor[0].is_contiguous() else tensor.contiguous()


def _shared(classes: int) -> int:
    return 4 * (8 * classes + 2)


def _launch_rows(name: str, number: int, arguments: list[Any]) -> None:
    """One warp for each of so many rows."""
    _launch(name, -(-number // ROWS_A_BLOCK), 1, WARP, ROWS_A_BLOCK, arguments)


def _launch(name: str, across: int, down: int, width: int, height: int, arguments: list[Any], shared: int = 0) -> None:
    """Start a kernel with so many blocks of so many threads."""
    if not (across and down):
        return
    device = arguments[0].device
    known = kernels("fused.cu", device)
    assert known is not None, "can_fuse was asked"
    with torch.cuda.device(device):
        known[name](grid=(across, down, 1), block=(width, height, 1), args=arguments, shared_mem=shared)
