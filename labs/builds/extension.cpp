// The same binding in a .cpp file of its own: only the C++ compiler reads torch's headers.
#include <torch/extension.h>

#include "binding.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gelu_one", &gelu_one_of); }
