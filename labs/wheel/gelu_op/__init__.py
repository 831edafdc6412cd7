"""GeLU with its gradient as an operator of PyTorch, compiled ahead of time: nobody compiles anything to use it.

    from gelu_op import gelu, built

gelu: the function; its own docstring says what it takes. On a GPU where torch sees one and the package holds code for
    GPUs, else on the CPU.
built: what the package was built with and for: torch, cuda (the toolkit, None where only the CPU's library was built),
    python, sass and ptx (lists of architectures), version (of the kernel).

The import raises ImportError where torch is older than 2.9, where the driver is older than the toolkit that the package was
built with, and where it holds no code for the current GPU.
It asks the GPU which one it is, and that starts CUDA: a process that means to fork should fork first.
"""

import ctypes
import json
from pathlib import Path

import torch

from .compatibility import NO_IMAGE, compatible
from .op import define

_HERE = Path(__file__).parent
_OLDEST_TORCH = (2, 9)  # whose stable ABI the libraries are compiled against

built = json.loads((_HERE / "built.json").read_text(encoding="utf-8"))


def _cuda_of_the_driver():
    """The first number of the newest CUDA that the driver takes. torch has loaded the driver's library already."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


def _library():
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST_TORCH:
        raise ImportError(f"gelu_op needs torch 2.9 or newer, and this is {torch.__version__}. Install a newer torch.")
    library = _HERE / "_cuda.so"
    if not (torch.version.cuda and torch.cuda.is_available() and library.exists()):
        return _HERE / "_cpu.so"
    gpu = "{}.{}".format(*torch.cuda.get_device_capability())
    of_driver, of_toolkit = _cuda_of_the_driver(), int(built["cuda"].split(".")[0])
    if of_driver < of_toolkit:
        raise ImportError(f"gelu_op was built with CUDA {built['cuda']}, and this driver is for CUDA {of_driver}. Update the "
                          f"driver, or build the wheel again with a CUDA {of_driver} toolkit.")
    held = built["sass"] + built["ptx"]
    if compatible(held, gpu) == NO_IMAGE:
        raise ImportError(f"gelu_op holds code for {', '.join(held)}, and this GPU is sm_{gpu.replace('.', '')}: it can run "
                          f'none of that. Build the wheel again with TORCH_CUDA_ARCH_LIST="{gpu}", or a list that has it.')
    return library


torch.ops.load_library(_library())
gelu = define("gelu_op", built["version"])
