// Everything in one .cu file, as most tutorials have it: each of nvcc's three front ends reads all of torch's headers.
#include <torch/extension.h>

#include "binding.h"
#include "gelu_one.cu"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gelu_one", &gelu_one_of); }
