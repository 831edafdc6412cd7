// A kernel that calls a function of another file, which takes relocatable device code: `nvcc -dc`, and a device link.
__device__ float gelu(float x);  // far.cu

__global__ void kernel(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = gelu(x[i]);
}

extern "C" void launch(const float* x, float* y, int n) { kernel<<<(n + 255) / 256, 256>>>(x, y, n); }
