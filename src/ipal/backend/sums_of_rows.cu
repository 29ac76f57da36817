// Sums of rows, each from indptr[i] to indptr[i + 1] in `indices`, added up in a fixed order. cuda_kernels.py defines T (a
// number), V (a vector of so many LANES) and WEIGHT(e), the weight of an entry.
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
