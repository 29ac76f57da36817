"""Kernels of our own on a GPU; here the one for sums of rows, in a fixed order, which torch has none for that is fast.

Torch's product of CSR matrices adds in no fixed order on a GPU, and its kernel for bags of embeddings, which does,
takes four times as long. The kernel below is as fast as the former, and gives the same bits as often as it is called.
It is compiled when first needed, by the compiler that torch brings along; where that is missing, bags serve.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

SOURCE = """
extern "C" __global__ void sums_of_rows(const int* __restrict__ indptr, const int* __restrict__ indices,
    const T* __restrict__ weights, const T* __restrict__ rows, T* __restrict__ out, int number, int width) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= number) return;
  const int end = indptr[row + 1];
  for (int column = (blockIdx.y * 32 + threadIdx.x) * LANES; column < width; column += gridDim.y * 32 * LANES) {
    T even[LANES] = {}, odd[LANES] = {};
    int e = indptr[row];
    for (; end - e > 3; e += 4) {
      V x[4];
      T w[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = *reinterpret_cast<const V*>(rows + static_cast<long long>(indices[e + i]) * width + column);
        w[i] = WEIGHT(e + i);
      }
      #pragma unroll
      for (int i = 0; i < 4; i += 2)
        #pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
          even[lane] += w[i] * reinterpret_cast<const T*>(&x[i])[lane];
          odd[lane] += w[i + 1] * reinterpret_cast<const T*>(&x[i + 1])[lane];
        }
    }
    for (; e < end; ++e) {
      const V x = *reinterpret_cast<const V*>(rows + static_cast<long long>(indices[e]) * width + column);
      const T w = WEIGHT(e);
      #pragma unroll
      for (int lane = 0; lane < LANES; ++lane) even[lane] += w * reinterpret_cast<const T*>(&x)[lane];
    }
    V sum;
    #pragma unroll
    for (int lane = 0; lane < LANES; ++lane) reinterpret_cast<T*>(&sum)[lane] = even[lane] + odd[lane];
    *reinterpret_cast<V*>(out + static_cast<long long>(row) * width + column) = sum;
  }
}
"""
ROWS_A_BLOCK, MOST_BLOCKS = 4, 65_535
TYPES = {torch.float32: ("float", "float4", 4), torch.float64: ("double", "double2", 2)}


@cache
def compiled(source: str, name: str, device: torch.device) -> Any:
    """A kernel for a device; None where it cannot be had.

    What torch compiles kernels with is no part of its public interface: another version may lack it, or take more.
    """
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        return None
    try:
        with torch.cuda.device(device):
            return compile_kernel(source, name)
    except (RuntimeError, OSError, TypeError):
        return None


def _source(dtype: torch.dtype, is_wide: bool, is_weighted: bool) -> str:
    """The sums for a type of number, reading several columns at a time or one."""
    number, vector, lanes = TYPES[dtype]
    if not is_wide:
        vector, lanes = number, 1
    weight = "weights[e]" if is_weighted else "static_cast<T>(1)"
    return f"#define T {number}\n#define V {vector}\n#define LANES {lanes}\n#define WEIGHT(e) {weight}\n" + SOURCE


def sums_of_rows(rows: Tensor, indices: Tensor, indptr: Tensor, weights: Tensor | None = None) -> Tensor | None:
    """Sums of rows, each from `indptr[i]` to `indptr[i + 1]` in `indices`, on a GPU; None where there is no kernel."""
    if rows.dtype not in TYPES:
        return None
    number, width = len(indptr) - 1, rows.shape[1]
    with torch.cuda.device(rows.device):
        is_wide = width % TYPES[rows.dtype][2] == 0
        kernel = compiled(_source(rows.dtype, is_wide, weights is not None), "sums_of_rows", rows.device)
        if kernel is None:
            return None
        out = torch.empty(number, width, dtype=rows.dtype, device=rows.device)
        if number and width:
            blocks = -(-number // ROWS_A_BLOCK)
            arguments = [indptr, indices, out if weights is None else weights, rows.contiguous(), out, number, width]
            # Columns of many learners (stacked.py) side by side: more blocks, since there may be few rows.
            wide = min(-(-width // (32 * (TYPES[rows.dtype][2] if is_wide else 1))), MOST_BLOCKS)
            kernel(grid=(blocks, wide, 1), block=(32, ROWS_A_BLOCK, 1), args=arguments)
    return out
