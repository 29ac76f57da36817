"""Kernels of our own on a GPU, in CUDA C++ (`*.cu`); here the one for sums of rows, in a fixed order.

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

WARPS, MOST_BLOCKS = 4, 65_535
FEW_NUMBERS, LONG = 2**21, 32
"""Of a result: where there are so few, all warps of a block share a row of more than so many entries. Where there are
more, as many warps run at once as a GPU can hold."""
TYPES = {torch.float32: ("float", "float4", 4), torch.float64: ("double", "double2", 2)}
MOST_CODE = 2**24
"""Bytes of machine code."""
DIGEST = 32
"""Bytes of a checksum, with which a file of machine code begins."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, started on the current stream: torch's own way takes a tenth of a millisecond."""

    driver: Any
    function: Any

    def __call__(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], args: Sequence[Tensor | int], shared_mem: int = 0
    ) -> None:
        held = [ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else ctypes.c_int(one) for one in args]
        pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))
        failed = self.driver.cuLaunchKernel(self.function, *grid, *block, shared_mem, stream, pointers, None)
        if failed:
            raise RuntimeError(f"CUDA error {failed}: a kernel could not be started.")


@cache
def kernels(file: str, device: torch.device, before: str = "") -> Mapping[str, Kernel] | None:
    """The kernels of a file by name, whose source comes after `before`; None where they cannot be had."""
    source = before + Path(__file__).with_name(file).read_text()
    names = re.findall(r'extern "C" .*__global__ void (\w+)', source)
    try:
        from torch.cuda._utils import _cuda_load_module, _get_gpu_runtime_library

        with torch.cuda.device(device):
            loaded = _cuda_load_module(_machine_code(source, names[0]), names)
        return {name: Kernel(_get_gpu_runtime_library(), loaded[name].func) for name in names}  # type: ignore[index]
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
    long, blocks = (LONG, 1) if number * width <= FEW_NUMBERS else (2**31 - 1, 64 // WARPS)
    sizes = {"LANES": lanes, "WARPS": WARPS, "LONG": long, "BLOCKS": blocks}
    names = {"T": kind, "V": vector, "WEIGHT(e)": weight, **sizes}
    defined = "".join(f"#define {name} {value}\n" for name, value in names.items())
    found = kernels("sums_of_rows.cu", rows.device, defined)
    if found is None:
        return None
    out = torch.empty(number, width, dtype=rows.dtype, device=rows.device)
    if number and width:
        inputs = [indptr, indices, out if weights is None else weights, rows.contiguous()]
        # Columns of many learners (stacked.py) side by side: more blocks, since there may be few rows.
        grid = (-(-number // WARPS), min(-(-width // (32 * lanes)), MOST_BLOCKS), 1)
        with torch.cuda.device(rows.device):
            found["sums_of_rows"](grid=grid, block=(32, WARPS, 1), args=[*inputs, out, number, width])
    return out
