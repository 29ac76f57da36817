// One step of Adam for `number` floats; `adam.py` has the equation. torch's fused kernel gives each block 65,536 numbers, so
// that one large weight keeps a few blocks busy and leaves the rest of a GPU idle.
extern "C" __global__ void adam(float* __restrict__ weights, const float* __restrict__ gradients, float* __restrict__ means,
    float* __restrict__ squares, const float* __restrict__ step, int number, double rate, double decay, double beta1,
    double beta2, double epsilon) {
  // 1 - beta^t, without cancellation
  const float size = rate / -expm1f(*step * static_cast<float>(log(beta1)));
  const float root = sqrtf(-expm1f(*step * static_cast<float>(log(beta2))));
  const float b1 = beta1, b2 = beta2, keep1 = 1 - beta1, keep2 = 1 - beta2, lambda = decay, small = epsilon;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < number; i += gridDim.x * blockDim.x) {
    const float g = gradients[i] + lambda * weights[i];
    means[i] = b1 * means[i] + keep1 * g;
    squares[i] = b2 * squares[i] + keep2 * g * g;
    weights[i] -= size * means[i] / (sqrtf(squares[i]) / root + small);
  }
}
