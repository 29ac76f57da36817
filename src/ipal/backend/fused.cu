// Parts of the loss of prototypes, and of sampling, as one kernel each: fused.py starts them, and says what they are.
// A warp is 32 threads; sums over one are made in a fixed order. `batch` counts learners whose steps are taken as one.

#define LEAST __int_as_float(0xff800000)

__device__ float sum_of_warp(float value) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
  return value;
}

__device__ float maximum_of_warp(float value) {
  for (int step = 16; step; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
  return value;
}

// A scale below zero says that the row is too short to have a direction.
extern "C" __global__ void unit_rows(const float* rows, float* out, float* scales, int number, int width) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= number) return;
  rows += static_cast<long long>(row) * width;
  out += static_cast<long long>(row) * width;
  float square = 0;
  for (int c = threadIdx.x; c < width; c += 32) square += rows[c] * rows[c];
  square = sum_of_warp(square);
  const bool is_short = square < 1e-24f;
  const float scale = rsqrtf(is_short ? 1e-24f : square);
  for (int c = threadIdx.x; c < width; c += 32) out[c] = rows[c] * scale;
  if (threadIdx.x == 0) scales[row] = is_short ? -scale : scale;
}

extern "C" __global__ void unit_rows_backward(const float* grad, const float* out, const float* scales, float* found,
    int number, int width) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= number) return;
  const long long begin = static_cast<long long>(row) * width;
  float along = 0;
  for (int c = threadIdx.x; c < width; c += 32) along += grad[begin + c] * out[begin + c];
  along = sum_of_warp(along);
  const float scale = fabsf(scales[row]);
  if (scales[row] < 0) along = 0;
  for (int c = threadIdx.x; c < width; c += 32) found[begin + c] = scale * (grad[begin + c] - along * out[begin + c]);
}

__device__ bool counts(int column, long long label, const long long* hard_labels, const unsigned char* absent,
    int first, int hard, int absences) {
  if (column < first) return !(absences && absent[column]);
  if (column - first >= hard) return true;
  const long long other = hard_labels[column - first];
  return other >= 0 && other != label;
}
#define COLUMNS const long long* labels, const long long* hard_labels, const unsigned char* absent, int labels_step, \
    int hard_step, int absent_step, int rows, int number, int columns, int first, int hard, int absences
#define OF_ROW \
  const int row = blockIdx.x * blockDim.y + threadIdx.y; \
  if (row >= rows) return; \
  const int batch = row / number; \
  const long long label = labels[static_cast<long long>(batch) * labels_step + row % number]; \
  hard_labels += static_cast<long long>(batch) * hard_step; \
  absent += static_cast<long long>(batch) * absent_step; \
  products += static_cast<long long>(row) * columns;

extern "C" __global__ void contrast(const float* products, float* loss, float* totals, COLUMNS) {
  OF_ROW
  float most = LEAST, sum = 0;
  for (int c = threadIdx.x; c < columns; c += 32)
    if (counts(c, label, hard_labels, absent, first, hard, absences)) most = fmaxf(most, products[c]);
  most = maximum_of_warp(most);
  for (int c = threadIdx.x; c < columns; c += 32)
    if (counts(c, label, hard_labels, absent, first, hard, absences)) sum += expf(products[c] - most);
  const float total = most + logf(sum_of_warp(sum));
  if (threadIdx.x == 0) {
    totals[row] = total;
    loss[row] = total - products[label];
  }
}

extern "C" __global__ void contrast_backward(const float* products, const float* grad, const float* totals,
    float* found, COLUMNS) {
  OF_ROW
  found += static_cast<long long>(row) * columns;
  const float slope = grad[row], total = totals[row];
  for (int c = threadIdx.x; c < columns; c += 32) {
    const bool is_there = counts(c, label, hard_labels, absent, first, hard, absences);
    const float p = is_there ? expf(products[c] - total) : 0.0f;
    found[c] = slope * (c == label ? p - 1 : p);
  }
}

// One block a class. Every thread knows the first of its own nodes that is not taken yet, by value and then by number;
// the first of all threads is taken, and its thread looks for the next. Without a number there is none.
__device__ bool comes_before(float a, int i, float b, int j) {
  return i >= 0 && (j < 0 || a > b || (a == b && i < j));
}
__device__ void look_after(float last, int last_place, const float* within, int number, float& value, int& place) {
  place = -1;
  for (int i = threadIdx.x; i < number; i += blockDim.x)
    if ((last_place < 0 || comes_before(last, last_place, within[i], i)) && within[i] == within[i] &&
        comes_before(within[i], i, value, place))
      value = within[i], place = i;
}
extern "C" __global__ void hardest(const float* within, long long* nodes, long long* labels, int number, int k) {
  extern __shared__ float shared[];
  int* places = reinterpret_cast<int*>(shared + 32);
  const long long row = static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x;
  within += row * number;
  float value = 0;
  int place;
  look_after(0, -1, within, number, value, place);
  for (int s = 0; s < k; ++s) {
    float best = value;
    int found = place;
    for (int step = 16; step; step /= 2) {
      const float other = __shfl_xor_sync(0xffffffff, best, step);
      const int other_place = __shfl_xor_sync(0xffffffff, found, step);
      if (comes_before(other, other_place, best, found)) best = other, found = other_place;
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best, places[threadIdx.x / 32] = found;
    __syncthreads();
    for (int warp = 0; warp < blockDim.x / 32; ++warp)
      if (comes_before(shared[warp], places[warp], best, found)) best = shared[warp], found = places[warp];
    __syncthreads();
    if (threadIdx.x == 0) {
      nodes[row * k + s] = found < 0 ? 0 : found;
      labels[row * k + s] = found < 0 || best == LEAST ? -1 : static_cast<int>(blockIdx.x);
    }
    if (found >= 0 && found % blockDim.x == threadIdx.x) look_after(best, found, within, number, value, place);
  }
}

// One block a node. With x its embedding, u_k the direction of prototype mu_k, a_k = x . u_k and r = 1 - lambda_m,
// the affinity of the mixture with m to k is (lambda_m a_k + r mu_m . u_k) / sqrt(q_m),
// q_m = lambda_m^2 x . x + 2 lambda_m r |mu_m| a_m + r^2 |mu_m|^2; its change is d_mk, and e is the sum of its squares.
extern "C" __global__ void distilled(const float* f, const float* before, const long long* chosen, const float* lam,
    const float* directions, const float* lengths, const float* products, float* squares, float* rows,
    int f_step, int before_step, int chosen_step, int lam_step, int directions_step, int lengths_step,
    int products_step, int some, int classes, int width) {
  extern __shared__ float shared[];
  const long long batch = blockIdx.y;
  const long long node = chosen[batch * chosen_step + blockIdx.x];
  f += batch * f_step + node * width;
  before += batch * before_step + node * width;
  lam += batch * lam_step + static_cast<long long>(blockIdx.x) * classes;
  directions += batch * directions_step;
  lengths += batch * lengths_step;
  products += batch * products_step;
  rows += (batch * some + blockIdx.x) * width;
  float *now = shared, *then = now + classes + 1, *by_now = then + classes + 1, *by_then = by_now + classes,
        *slope = by_then + classes, *by_square = slope + classes, *square = by_square + classes,
        *along = square + classes;
  for (int j = threadIdx.x / 32; j < 2 * (classes + 1); j += blockDim.x / 32) {
    const int k = j % (classes + 1);
    const float* x = j <= classes ? f : before;
    const float* other = k < classes ? directions + static_cast<long long>(k) * width : x;
    float dot = 0;
    for (int c = threadIdx.x % 32; c < width; c += 32) dot += x[c] * other[c];
    dot = sum_of_warp(dot);
    if (threadIdx.x % 32 == 0) now[j] = dot;
  }
  __syncthreads();
  for (int m = threadIdx.x; m < classes; m += blockDim.x) {
    const float* of_m = products + static_cast<long long>(m) * classes;
    const float l = lam[m], r = 1 - l, both = 2 * l * r * lengths[m], rest = r * lengths[m] * (r * lengths[m]);
    float q = l * l * now[classes] + both * now[m] + rest, q_then = l * l * then[classes] + both * then[m] + rest;
    const bool is_short = q < 1e-12f;
    if (is_short) q = 1e-12f;
    if (q_then < 1e-12f) q_then = 1e-12f;
    by_now[m] = 1 / sqrtf(q);
    by_then[m] = 1 / sqrtf(q_then);
    float best = LEAST, e = 0, sum = 0;
    int nearest = 0;
    for (int k = 0; k < classes; ++k) {
      const float affinity = (l * then[k] + r * of_m[k]) * by_then[m];
      if (affinity > best) best = affinity, nearest = k;
    }
    if (nearest == m)
      for (int k = 0; k < classes; ++k) {
        const float affinity = (l * now[k] + r * of_m[k]) * by_now[m];
        const float d = affinity - (l * then[k] + r * of_m[k]) * by_then[m];
        e += d * d;
        sum += d * affinity;
      }
    square[m] = e;
    slope[m] = nearest == m ? 2 * l * by_now[m] : 0.0f;
    by_square[m] = is_short ? 0.0f : -sum / q;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < classes; k += blockDim.x) {
    float sum = by_square[k] * 2 * lam[k] * (1 - lam[k]) * lengths[k];
    for (int m = 0; m < classes; ++m) {
      const float l = lam[m], part = (1 - l) * products[static_cast<long long>(m) * classes + k];
      sum += slope[m] * ((l * now[k] + part) * by_now[m] - (l * then[k] + part) * by_then[m]);
    }
    along[k] = sum;
  }
  __syncthreads();
  float own = 0;
  for (int m = 0; m < classes; ++m) own += by_square[m] * lam[m] * lam[m];
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    float sum = 2 * own * f[c];
    for (int k = 0; k < classes; ++k) sum += along[k] * directions[static_cast<long long>(k) * width + c];
    rows[c] = sum;
  }
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int m = 0; m < classes; ++m) sum += square[m];
    squares[batch * some + blockIdx.x] = sum;
  }
}

// Rows are gradients of the square of the norm, which has none where it is zero.
extern "C" __global__ void distilled_backward(const float* rows, const float* norm, const float* grad,
    const long long* chosen, float* found, int chosen_step, int number, int some, int width) {
  const long long batch = blockIdx.y, node = chosen[batch * chosen_step + blockIdx.x];
  rows += (batch * some + blockIdx.x) * width;
  found += (batch * number + node) * width;
  const float scale = norm[batch] == 0 ? 0.0f : grad[batch] / (2 * norm[batch]);
  for (int c = threadIdx.x; c < width; c += blockDim.x) found[c] = scale * rows[c];
}

extern "C" __global__ void inverted(const double* u, const double* mass, const double* step, float* found, int number,
    int points) {
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place >= number) return;
  int low = 0, high = points;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (mass[middle] < u[place]) low = middle + 1;
    else high = middle;
  }
  const int above = low < 1 ? 1 : low;
  const double below = mass[above - 1];
  found[place] = static_cast<float>(*step * (above - 1 + (u[place] - below) / (mass[above] - below)));
}

// Floyd's algorithm, one thread a row; see batches.py.
extern "C" __global__ void distinct_places(const double* draws, const long long* degree, long long* chosen, int number,
    int k) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= number) return;
  draws += static_cast<long long>(row) * k;
  chosen += static_cast<long long>(row) * k;
  for (int s = 0; s < k; ++s) {
    const long long last = degree[row] - k + s;
    long long drawn = static_cast<long long>(draws[s] * static_cast<double>(last + 1));
    if (drawn > last) drawn = last;
    bool is_taken = false;
    for (int t = 0; t < s; ++t) is_taken = is_taken || chosen[t] == drawn;
    chosen[s] = is_taken ? last : drawn;
  }
}
