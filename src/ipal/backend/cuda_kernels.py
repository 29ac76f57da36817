"""Kernels of our own on a GPU, in CUDA C++ (`*.cu`); here those for sums of rows, in a fixed order, and for Adam.

Torch's product of CSR matrices adds in no fixed order on a GPU, and its kernel for bags of embeddings, which does,
takes four times as long. Ours is as fast as the former, and gives the same bits as often as it is called. What torch
compiles and loads kernels with is no part of its public interface: where it is missing, torch's own operations serve.
Compiling takes seconds, so that machine code is kept in ~/.cache/ipal.
"""

import ctypes
import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ipal.errors import StoreError
from ipal.system.files import read_bounded, write_atomically

ROWS_A_BLOCK, MOST_BLOCKS = 4, 65_535
THREADS, MOST_THREADS = 256, 2**19
TYPES = {torch.float32: ("float", "float4", 4), torch.float64: ("double", "double2", 2)}
MOST_CODE = 2**24
"""Bytes of machine code."""
DIGEST = 32
"""Bytes of a checksum, with which a file of machine code begins."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, started on the current stream of its device: torch's own way takes a tenth of a millisecond."""

    driver: ctypes.CDLL
    function: ctypes.c_void_p

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Tensor | int | float],
        shared_mem: int = 0,
    ) -> None:
        held = [_c_value(one) for one in args]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in held))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))
        failed = self.driver.cuLaunchKernel(self.function, *grid, *block, shared_mem, stream, pointers, None)
        if failed:
            raise RuntimeError(f"CUDA error {failed}: a kernel could not be started.")


def _c_value(argument: Tensor | int | float) -> Any:
    if isinstance(argument, Tensor):
        if not argument.is_cuda:
            raise ValueError("A kernel takes tensors of its GPU.")
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_double(argument)


@cache
def kernels(file: str, device: torch.device, before: str = "") -> Mapping[str, Kernel] | None:
    """The kernels of a file by name, whose source comes after `before`; None where they cannot be had."""
    source = before + Path(__file__).with_name(file).read_text()
    names = re.findall(r'extern "C" __global__ void (\w+)', source)
    try:
        from torch.cuda._utils import _cuda_load_module, _get_gpu_runtime_library

        with torch.cuda.device(device):
            loaded = _cuda_load_module(_machine_code(source, names[0]), names)
        driver = _get_gpu_runtime_library()
        return {name: Kernel(driver, loaded[name].func) for name in names}  # type: ignore[index]
    except (AttributeError, ImportError, RuntimeError, OSError, TypeError):
        return None


def _machine_code(source: str, name: str) -> bytes:
    """Compiled for the current GPU, or kept from an earlier time; a kept file that is damaged is made again."""
    made_for = f"{torch.__version__} {torch.version.cuda} {torch.cuda.get_device_capability()} {source}"
    kept = Path.home() / ".cache" / "ipal" / "kernels" / hashlib.sha256(made_for.encode()).hexdigest()
    with suppress(OSError):
        content = read_bounded(kept, MOST_CODE)
        if content[:DIGEST] == hashlib.sha256(content[DIGEST:]).digest():
            return content[DIGEST:]
    from torch.cuda._utils import _nvrtc_compile

    code, _ = _nvrtc_compile(source, name)
    with suppress(OSError, StoreError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, hashlib.sha256(code).digest() + code)
    return code


def sums_of_rows(rows: Tensor, indices: Tensor, indptr: Tensor, weights: Tensor | None = None) -> Tensor | None:
    """Sums of rows, each from `indptr[i]` to `indptr[i + 1]` in `indices`, on a GPU; None where there is no kernel."""
    if rows.dtype not in TYPES:
        return None
    number, width = len(indptr) - 1, rows.shape[1]
    kind, vector, lanes = TYPES[rows.dtype]
    if width % lanes:  # one column at a time, not several
        vector, lanes = kind, 1
    weight = "static_cast<T>(1)" if weights is None else "weights[e]"
    defined = f"#define T {kind}\n#define V {vector}\n#define LANES {lanes}\n#define WEIGHT(e) {weight}\n"
    found = kernels("sums_of_rows.cu", rows.device, defined)
    if found is None:
        return None
    out = torch.empty(number, width, dtype=rows.dtype, device=rows.device)
    if number and width:
        arguments: list[Tensor | int | float] = [
            indptr,
            indices,
            out if weights is None else weights,
            rows.contiguous(),
            out,
            number,
            width,
        ]
        # Columns of many learners (stacked.py) side by side: more blocks, since there may be few rows.
        grid = (-(-number // ROWS_A_BLOCK), min(-(-width // (32 * lanes)), MOST_BLOCKS), 1)
        with torch.cuda.device(rows.device):
            found["sums_of_rows"](grid=grid, block=(32, ROWS_A_BLOCK, 1), args=arguments)
    return out


def adam(
    weights: Tensor, gradients: Tensor, means: Tensor, squares: Tensor, step: Tensor, numbers: Sequence[float]
) -> bool:
    """Take a step of Adam for one tensor on a GPU; False where there is no kernel for it. See `adam.py`."""
    every = [weights, gradients, means, squares]
    if any(one.dtype != torch.float32 or not one.is_contiguous() for one in every) or weights.numel() >= 2**30:
        return False
    found = kernels("adam.cu", weights.device)
    if found is None:
        return False
    with torch.cuda.device(weights.device):
        blocks = min(-(-weights.numel() // THREADS), MOST_THREADS // THREADS)
        found["adam"]((blocks, 1, 1), (THREADS, 1, 1), [*every, step, weights.numel(), *numbers])
    return True
