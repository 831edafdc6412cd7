// A function of the GPU in a file of its own.
__device__ float gelu(float x) {
    const float u = x * x;
    return 0.5f * x * (1 + tanhf(0.79788456f * x * (1 + 0.044715f * u)));
}
