"""Parts of the loss of prototypes, and of sampling, as one kernel each on a GPU, where torch would start dozens.

A step of a small graph takes as long as its kernels are many. Each function here computes what a few lines of
`nn.losses` and of the learners say, forward and backward, and adds in a fixed order. They are used where `can_fuse`
says so; elsewhere those lines serve. All tensors have a first dimension for learners that take their steps as one
(`learners.stacked`); what is the same for all is there once, with a stride of zero.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ipal.backend.cuda_kernels import compiled
from ipal.backend.fused_source import SOURCES, WARP

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
    if device.type != "cuda":
        return False
    return all(compiled(source, name, device) is not None for name, source in SOURCES.items())


def unit(rows: Tensor) -> Tensor:
    """Rows (number x width) scaled to length one; a row of zeros stays."""
    return cast(Tensor, _Unit.apply(rows)[0])  # type: ignore[no-untyped-call]


def contrast(products: Tensor, labels: Tensor, hard_labels: Tensor, first: int, absent: Tensor | None) -> Tensor:
    """Of every row minus the logarithm of its softmax at its label, over the columns that count.

    The first columns, so many, are prototypes, of which `absent` ones do not count. After them come hard examples,
    one for each of `hard_labels`, which count for rows of other labels where theirs is no -1; then what always counts.
    """
    none = torch.empty(first if absent is not None else 0, dtype=torch.bool, device=products.device)
    inputs = (products, labels, hard_labels, none if absent is None else absent)
    found, _ = _Contrast.apply(*(one[None] for one in inputs), first)  # type: ignore[no-untyped-call]
    return cast(Tensor, found).squeeze(0)


def entropy_of_members(affinity: Tensor, members: Tensor) -> Tensor:
    """Entropy of the softmax over each column of `affinity` (classes x nodes); minus infinity where no member."""

    def kernel(affinity: Tensor, members: Tensor) -> Tensor:
        affinity, members = affinity.contiguous(), _inner(members)
        batch, classes, number = affinity.shape
        found = torch.empty(batch, members.shape[1], number, dtype=affinity.dtype, device=affinity.device)
        sizes = [members.stride(0), classes, members.shape[1], number]
        _launch("entropy", -(-number // THREADS), batch, THREADS, 1, [affinity, members, found, *sizes])
        return found

    return _computed(kernel, affinity, members)


def hardest(within: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of each row (classes x nodes) from the largest on: nodes, and rows, or -1 for minus infinity."""

    def kernel(within: Tensor) -> Tensor:
        within = within.contiguous()
        batch, classes, number = within.shape
        found = torch.empty(2, batch, classes * k, dtype=torch.int64, device=within.device)
        threads = MOST_THREADS if number > FEW_NODES else THREADS
        _launch("hardest", classes, batch, threads, 1, [within, *found, number, k], 8 * WARP)
        return found.movedim(0, 1)

    nodes, labels = _computed(kernel, within)
    return nodes, labels


def directions_drawn(mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """Draws from Gaussians (classes x width), scaled to length one; `noise` is classes x draws x width."""

    def kernel(*inputs: Tensor) -> Tensor:
        some = [_inner(one) for one in inputs]
        batch, classes, draws, width = inputs[2].shape
        found = torch.empty(batch, classes * draws, width, dtype=inputs[0].dtype, device=inputs[0].device)
        sizes = [*(one.stride(0) for one in some), batch * classes * draws, classes, draws, width]
        _launch_rows("directions_drawn", batch * classes * draws, [*some, found, *sizes])
        return found

    return _computed(kernel, mean, variance, noise)


def distilled(
    f: Tensor, before: Tensor, chosen: Tensor, lam: Tensor, directions: Tensor, lengths: Tensor, products: Tensor
) -> Tensor:
    """The norm of all changes of affinity of nodes `chosen`, no node twice: `losses.affinity_distillation`.

    `directions` and `lengths` are those of the old prototypes mu, `products` are mu @ directions.T.
    """
    inputs = (f, before, chosen, lam, directions, lengths, products)
    return cast(Tensor, _Distilled.apply(*(one[None] for one in inputs))[0]).squeeze(0)  # type: ignore[no-untyped-call]


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


# ---------------------------------------------------------------------- for autograd, and for many learners


def _together(info: Any, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors with a first dimension of all learners: what is the same for all is not copied."""
    size = info.batch_size
    first = [
        one[None].expand(size, *one.shape) if dim is None else one.movedim(dim, 0)
        for one, dim in zip(tensors, dims, strict=True)
    ]
    return [one.reshape(size * one.shape[1], *one.shape[2:]) for one in first]


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.contiguous()
        number, width = rows.shape
        out, scale = torch.empty_like(rows), torch.empty(number, dtype=rows.dtype, device=rows.device)
        _launch_rows("unit_rows", number, [rows, out, scale, number, width])
        return out, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> Tensor | None:
        if grad is None:
            return None
        out, scale = ctx.saved_tensors
        found, grad = torch.empty_like(out), grad.contiguous()
        _launch_rows("unit_rows_backward", len(out), [grad, out, scale, found, *out.shape])
        return found

    @staticmethod
    def vmap(info: Any, dims: tuple[int], rows: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        size = info.batch_size
        out, scale = _Unit.apply(*_together(info, dims, (rows,)))  # type: ignore[no-untyped-call]
        return (out.unflatten(0, (size, -1)), scale.unflatten(0, (size, -1))), (0, 0)


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(
        products: Tensor, labels: Tensor, hard_labels: Tensor, absent: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        products = products.contiguous()
        batch, number, _ = products.shape
        loss, total = (torch.empty(batch, number, dtype=products.dtype, device=products.device) for _ in range(2))
        _launch_rows(
            "contrast", batch * number, [products, loss, total, *_columns(products, labels, hard_labels, absent, first)]
        )
        return loss, total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:4], output[1])
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

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        tensors, first = inputs[:4], inputs[4]
        loss, total = _Contrast.apply(*_together(info, dims[:4], tensors), first)  # type: ignore[no-untyped-call]
        return (loss[:, None], total[:, None]), (0, 0)


def _columns(products: Tensor, labels: Tensor, hard_labels: Tensor, absent: Tensor, first: int) -> list[Any]:
    """Arguments of the kernels of `contrast`: which columns count."""
    some = [_inner(one) for one in (labels, hard_labels, absent)]
    _, number, columns = products.shape
    sizes = [products.shape[0] * number, number, columns, first, hard_labels.shape[1], absent.shape[1]]
    return [*some, *(one.stride(0) for one in some), *sizes]


class _Computed(torch.autograd.Function):
    """What a kernel computes; no gradient goes through it."""

    @staticmethod
    def forward(kernel: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        return kernel(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], kernel: Callable[..., Tensor], *inputs: Tensor
    ) -> tuple[Tensor, int]:
        found = _Computed.apply(kernel, *_together(info, dims[1:], inputs))  # type: ignore[no-untyped-call]
        return found[:, None], 0


def _computed(kernel: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """What a kernel for many learners computes for one."""
    return cast(Tensor, _Computed.apply(kernel, *(one[None] for one in inputs))).squeeze(0)  # type: ignore[no-untyped-call]


class _Distilled(torch.autograd.Function):
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
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[2], *output)
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

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        norm, rows = _Distilled.apply(*_together(info, dims, inputs))  # type: ignore[no-untyped-call]
        return (norm[:, None], rows[:, None]), (0, 0)


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
    if not (across and down):
        return
    device = arguments[0].device
    kernel = compiled(SOURCES[name], name, device)
    with torch.cuda.device(device):
        kernel(grid=(across, down, 1), block=(width, height, 1), args=arguments, shared_mem=shared)
