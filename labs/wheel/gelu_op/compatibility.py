"""Which GPUs run the code that a library holds: CUDA's rule, in one function that needs nothing else."""

import re

RUNS, BY_DRIVER, NO_IMAGE = "runs", "compiled by the driver", "no kernel image"


def compatible(architectures, gpu):
    """What happens when a kernel that was compiled for `architectures` is launched on a GPU.

    architectures: names as nvcc and cuobjdump have them, such as ["sm_80", "compute_80"]; "sm" is SASS, machine code,
        and "compute" is PTX, an assembly that the driver compiles.
    gpu: its compute capability, such as "8.6".

    SASS runs on the same major number and an equal or higher minor one. PTX runs on anything equal or newer. With an
    "a" at the end (sm_90a) either is for exactly that GPU, with an "f" for its family: equal or newer of the same major
    number. Jetson's chips (8.7, 11.0) do not share SASS with others; that is not looked at. Nor is the driver, which has to
    know the CUDA release that the library was built with: its major number for SASS, the release itself for PTX.

    Returns "runs", "compiled by the driver" (at first use) or "no kernel image". Raises ValueError for another name.
    """
    major, minor = map(int, gpu.split("."))
    outcome = NO_IMAGE
    for name in architectures:
        parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if not parts:
            raise ValueError(f"architectures: {name!r} is none; write it as in sm_80 or compute_80")
        kind, of_major, of_minor, only = parts[1], int(parts[2]), int(parts[3]), parts[4]
        if only == "a":
            fits = (major, minor) == (of_major, of_minor)
        elif kind == "sm" or only == "f":
            fits = major == of_major and minor >= of_minor
        else:
            fits = (major, minor) >= (of_major, of_minor)
        if fits and kind == "sm":
            return RUNS
        if fits:
            outcome = BY_DRIVER
    return outcome
