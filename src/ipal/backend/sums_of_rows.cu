// Sums of rows, each from indptr[i] to indptr[i + 1] in `indices`, added up in a fixed order. cuda_kernels.py defines T (a
// number), V (a vector of so many LANES), WEIGHT(e), the weight of an entry, WARPS, those of a block, LONG, from where on a
// row is long, and BLOCKS, those that run at once on a multiprocessor, at least.

// Entries from e to `end`, in one column or several: those in even places and those in odd ones, and then both.
__device__ void add_up(const int* __restrict__ indices, const T* __restrict__ weights, const T* __restrict__ rows,
    int e, int end, int width, int column, T* sum) {
  T even[LANES] = {}, odd[LANES] = {};
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
  #pragma unroll
  for (int lane = 0; lane < LANES; ++lane) sum[lane] = even[lane] + odd[lane];
}

__device__ void store(T* out, int row, int width, int column, const T* sum) {
  V found;
  #pragma unroll
  for (int lane = 0; lane < LANES; ++lane) reinterpret_cast<T*>(&found)[lane] = sum[lane];
  *reinterpret_cast<V*>(out + static_cast<long long>(row) * width + column) = found;
}

// Each warp adds up a row of its own; then all warps of the block share the long ones, a part each.
extern "C" __launch_bounds__(32 * WARPS, BLOCKS) __global__ void sums_of_rows(const int* __restrict__ indptr,
    const int* __restrict__ indices, const T* __restrict__ weights, const T* __restrict__ rows, T* __restrict__ out,
    int number, int width) {
  __shared__ T parts[WARPS][32 * LANES];
  const int first = blockIdx.x * WARPS, lane = threadIdx.x * LANES;
  for (int columns = blockIdx.y * 32 * LANES; columns < width; columns += gridDim.y * 32 * LANES) {
    const int column = columns + lane, own = first + threadIdx.y;
    T sum[LANES];
    if (column < width && own < number && indptr[own + 1] - indptr[own] <= LONG) {
      add_up(indices, weights, rows, indptr[own], indptr[own + 1], width, column, sum);
      store(out, own, width, column, sum);
    }
    for (int row = first; row < min(first + WARPS, number); ++row) {
      const int begin = indptr[row], end = indptr[row + 1];
      if (end - begin <= LONG) continue;
      const int part = (end - begin + WARPS - 1) / WARPS, from = min(begin + static_cast<int>(threadIdx.y) * part, end);
      if (column < width) add_up(indices, weights, rows, from, min(from + part, end), width, column, parts[threadIdx.y] + lane);
      __syncthreads();
      if (threadIdx.y == 0 && column < width) {
        #pragma unroll
        for (int i = 0; i < LANES; ++i) sum[i] = parts[0][lane + i];
        for (int warp = 1; warp < WARPS; ++warp)
          #pragma unroll
          for (int i = 0; i < LANES; ++i) sum[i] += parts[warp][lane + i];
        store(out, row, width, column, sum);
      }
      __syncthreads();
    }
  }
}
