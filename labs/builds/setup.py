"""A setup script as in the days before `load`: the object file that nvcc made by hand, linked with the binding."""

import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="gelu_by_hand",
    ext_modules=[CppExtension("gelu_by_hand", ["extension.cpp"], define_macros=[("USE_CUDA", None)],
                              include_dirs=[os.environ["CUDA_INCLUDE"]],
                              extra_compile_args=["-O1", "-g0", "-std=c++20"],  # as `load` has it; Python's own come first
                              extra_objects=[os.environ["GELU_OBJECT"]],
                              library_dirs=[os.environ["CUDA_LIBRARIES"]], libraries=["cudart", "c10_cuda"])],
    cmdclass={"build_ext": BuildExtension},
)
