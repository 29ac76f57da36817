"""One run in several processes, as torchrun starts them: its rank, and the collectives.

Every process holds the same network and computes the same loss; the rows of graphs are divided among them. A tensor is
either replicated or a process's own part, and so is its gradient. The backward pass of each collective follows from
that, and is a collective again, so that second derivatives exist too:

    copied     the same    ->  for own use           gradients are summed
    summed     own parts   ->  their sum, the same   gradients are copied
    gathered   own rows    ->  all rows, the same    gradients are own rows
    own_rows   the same    ->  own rows              gradients are gathered
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from ipal.errors import ConfigError, TeamError

Item = TypeVar("Item")
Rows = TypeVar("Rows")

TIMEOUT_VARIABLE = "IPAL_TEAM_TIMEOUT"
TIMEOUT = 300.0
"""Seconds that a process waits for one that hangs. One that dies is noticed at once."""
VALUES_AT_ONCE = 2**24
GRACE = 5.0
"""Seconds for an orderly exit after SIGTERM."""
LOST = "Another process of this run has stopped or cannot be reached: start the same command again, it resumes."


@dataclass(frozen=True)
class Share:
    """The contiguous rows of a table that belong to this process; all shares have equal size but the last ones."""

    total: int
    """Rows of the whole table."""
    most: int
    """Rows of the largest share."""
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def is_all(self) -> bool:
        return len(self) == self.total

    def of(self, rows: Rows) -> Rows:
        """Own rows of a table that can be sliced; the table itself if it is not divided."""
        return rows if self.is_all else rows[self.begin : self.end]  # type: ignore[index]


@dataclass(frozen=True)
class Team:
    """The processes of one run; with one process every method returns its input."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The number of this process on its machine."""
    store: Any = field(default=None, compare=False, repr=False)
    """Where all processes see what one has written."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process of rank 0, which writes files and prints."""
        return self.rank == 0

    def share(self, total: int) -> Share:
        most = -(-total // self.size)
        begin = min(total, self.rank * most)
        return Share(total, most, begin, min(total, begin + most))

    # ------------------------------------------------------------------ values

    def broadcast(self, make: Callable[[], Item]) -> Item:
        """The value that `make` returns in the process of rank 0, in all processes."""
        if self.size == 1:
            return make()
        box: list[Any] = [make() if self.is_main else None]
        with exchange():
            dist.broadcast_object_list(box, src=0)
        return cast(Item, box[0])

    def barrier(self) -> None:
        """Wait for all processes, or until one of them is known to have stopped; runs on the CPU."""
        if self.size > 1:
            with exchange():
                dist.all_reduce(torch.zeros(1))

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors of rank 0 to all processes, in place: other machines may round differently."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        with exchange():
            dist.broadcast(flat, src=0)
        with torch.no_grad():
            for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def all_reduce(self, *tables: Tensor) -> None:
        """Replace tables by their sums over all processes, in place, some rows at a time (they may be mapped files)."""
        if self.size == 1:
            return
        for table in tables:
            for some in torch.split(table, max(1, VALUES_AT_ONCE // max(1, table[:1].numel()))):
                with exchange():
                    dist.all_reduce(some)

    # ------------------------------------------------------------------ tensors, with gradients

    def copied(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Replicated tensors, for a computation on own rows; the backward pass is one all-reduce."""
        if self.size == 1:
            return tensors
        return cast(tuple[Tensor, ...], _Copied.apply(*tensors))  # type: ignore[no-untyped-call]

    def summed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The sums of all processes' tensors, in one all-reduce."""
        if self.size == 1:
            return tensors
        return cast(tuple[Tensor, ...], _Summed.apply(*tensors))  # type: ignore[no-untyped-call]

    def gathered(self, rows: Tensor, share: Share) -> Tensor:
        """All rows, from each process's own: an all-gather."""
        if self.size == 1:
            return rows
        return cast(Tensor, _Gathered.apply(rows, share))  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------------ the end

    def is_first_to_report(self) -> bool:
        """Whether this is the first report of an error by any process or thread; the others stay silent."""
        if self.store is None:
            return True
        try:
            return int(self.store.add("reports", 1)) == 1
        except RuntimeError:  # the store is gone
            return True


ONE_PROCESS = Team()


@contextmanager
def exchange() -> Iterator[None]:
    """Raise a TeamError when a collective fails because another process has stopped."""
    try:
        yield
    except RuntimeError as error:
        raise TeamError(LOST) from error


@contextmanager
def joined() -> Iterator[Team]:
    """Join the process group that torchrun has started: gloo on CPUs, NCCL on GPUs."""
    timeout = _timeout()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    with exchange():
        store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
        group = PrefixStore("group", store)
        dist.init_process_group(backend, store=group, rank=rank, world_size=size, timeout=timeout)
    team = Team(rank, size, int(os.environ["LOCAL_RANK"]), PrefixStore("ipal", store))
    with _ended_by_signal(team):
        yield team
    # Not after an error: with a missing process this could block forever.
    dist.destroy_process_group()


def _timeout() -> timedelta:
    text = os.environ.get(TIMEOUT_VARIABLE) or str(TIMEOUT)
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{TIMEOUT_VARIABLE} is '{text}': set it to a number of seconds, as 300.") from error


@contextmanager
def _ended_by_signal(team: Team) -> Iterator[None]:
    """Turn SIGTERM, with which torchrun ends the processes left when one has died, into a TeamError.

    A process that waits for a GPU handles no signal until the GPU is done; a thread ends it then.
    """

    def stop(*_: object) -> None:
        raise TeamError(LOST)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.signal(signal.SIGTERM, stop), signal.set_wakeup_fd(writer)
    threading.Thread(target=_end_after_signal, args=(reader, team), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before[1])
        signal.signal(signal.SIGTERM, before[0])
        os.close(writer)


def _end_after_signal(reader: int, team: Team) -> None:
    while number := os.read(reader, 1):  # empty at the end of the run
        if number[0] == signal.SIGTERM:
            time.sleep(GRACE)
            if team.is_first_to_report():
                print(f"Error: {LOST}", file=sys.__stderr__, flush=True)
            os._exit(1)
    os.close(reader)


# ---------------------------------------------------------------------- collectives with gradients


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return cast(tuple[Tensor, ...], _Summed.apply(*grads))  # type: ignore[no-untyped-call]


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with exchange():
            dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return tuple(part.view_as(tensor).clone() for part, tensor in zip(parts, tensors, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return cast(tuple[Tensor, ...], _Copied.apply(*grads))  # type: ignore[no-untyped-call]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, share: Share) -> Tensor:
        ctx.share = share
        mine = torch.nn.functional.pad(rows, (0, 0, 0, share.most - len(share))).contiguous()
        whole = mine.new_empty(dist.get_world_size(), *mine.shape)
        with exchange():
            dist.all_gather(list(whole), mine)
        everybodys = whole.flatten(0, 1)
        return everybodys if len(everybodys) == share.total else everybodys[: share.total].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return cast(Tensor, _OwnRows.apply(grads[0], ctx.share)), None  # type: ignore[no-untyped-call]


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, share: Share) -> Tensor:
        ctx.share = share
        return rows[share.begin : share.end].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return cast(Tensor, _Gathered.apply(grads[0], ctx.share)), None  # type: ignore[no-untyped-call]
