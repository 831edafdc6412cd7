"""What the host backend refuses, and why: compilers' words about it in plain ones."""

from __future__ import annotations

import re

# Why a CUDA name is refused, and what to do; the first pattern that matches whole counts.
REFUSED = [
    (r"__global__", "kernels have to stand in the .cu file or in a header beside it; other headers are not transformed"),
    (
        r"asm|__asm__",
        "inline PTX runs only on a GPU; keep it inside #ifdef __CUDA_ARCH__, with plain C++ in the #else",
    ),
    (
        r"__managed__|cuda(Malloc|Free|Host|Memcpy).*|cudaGetSymbol.*",
        "a .cu file gets pointers from PyTorch, which owns and copies all memory; "
        "a constant may be initialised in place",
    ),
    (
        r"cudaStream.*|cudaEvent.*|cudaGraph.*",
        "streams, events and graphs are PyTorch's; the host backend runs in order",
    ),
    (r"cudaLaunch.*", "launch with <<<grid, block, shared, stream>>>"),
    (r"__cluster_dims__|__block_size__", "thread block clusters exist only on a GPU"),
    (r"cudaOccupancy.*", "the answer depends on registers, which the host does not count"),
    (r"cudaGetDeviceProperties|cudaDeviceProp", "ask cudaDeviceGetAttribute for what a launcher needs"),
    (r"cudaTexture.*|cudaSurface.*|tex[123]D.*|surf[123]D.*", "textures and surfaces exist only on a GPU"),
    (r"__(shfl|ballot|any|all)(_\w+)?", "CUDA removed it; use the function with _sync and a mask"),
    (
        r"cooperative_groups.*|cg",
        "no cooperative groups: use __syncthreads, __syncwarp and the __shfl_*_sync functions",
    ),
    (r"clock64|globaltimer|__nanosleep|__trap|__brkpt", "it has no meaning off a GPU"),
    (r"__\w+_r[zud]", "the host rounds to nearest only"),
    (r"__constant__", "a __constant__ variable needs its value where it is declared, known when compiling"),
    (
        r"__shared__",
        "`extern __shared__` has to stand in the .cu file or in a header beside it; other headers are not transformed",
    ),
    (r"cudaFuncSetAttribute", "pass the kernel itself, not cast to a pointer to void"),
    (
        r"(cuda|cub|thrust|nv)/.*|cu[a-z_]*.*\.h|cooperative_groups/.*",
        "the host backend has no such CUDA header",
    ),
]
# The 16-bit types as compilers call them, and as CUDA does.
_TYPES = {"cuda_host::Small<5, 10>": "__half", "cuda_host::Small<8, 7>": "__nv_bfloat16",
          "cuda_host::Small2<5, 10>": "__half2", "cuda_host::Small2<8, 7>": "__nv_bfloat162"}
_LOCATION = r"^(?P<file>[^\n:]+):(?P<line>\d+):\d+: (?:fatal )?error: "
_COMPLAINTS = [
    re.compile(_LOCATION + r"attempt to use poisoned [\"‘'](?P<name>\w+)", re.M),  # g++
    re.compile(_LOCATION + r"attempt to use a poisoned identifier\n[^\n]*\n(?P<caret> *)\^", re.M),  # clang
    re.compile(
        _LOCATION + r"[‘'](?:::)?(?P<name>(?:__|cuda|h2|cooperative_groups|cg|wmma|atomic)\w*)[’'] "
        r"(?:was not declared|has not been declared|does not name a type|is not a member)",
        re.M,
    ),
    re.compile(
        _LOCATION + r"(?:use of undeclared identifier|unknown type name|there are no arguments to) "
        r"[‘'](?P<name>(?:__|cuda|h2|cooperative_groups|cg|wmma|atomic)\w*)",
        re.M,
    ),
    re.compile(_LOCATION + r"use of deleted function [‘'][\w ]*?(?P<name>cuda\w+)\(", re.M),
    re.compile(_LOCATION + r"call to deleted function '(?P<name>cuda\w+)'", re.M),
    re.compile(
        _LOCATION + r"'?(?P<name>(?:cuda|cub|thrust|nv|cooperative_groups)/[\w./]+|cu\w+\.h)"
        r"(?:: No such file|' file not found)",
        re.M,
    ),
    # What only the source line under the message tells.
    re.compile(
        _LOCATION + r"[^\n]*(?:uninitialized|default initialization)[^\n]*\n[^\n]*\b(?P<name>__constant__)",
        re.M,
    ),
    re.compile(_LOCATION + r"[^\n]*\n[^\n]*\bextern\b[^\n]*\b(?P<name>__shared__)", re.M),
    # An #error in kernels/host, at the place that includes it.
    re.compile(
        r"^In file included from (?P<file>[^\n:]+):(?P<line>\d+)[^\n]*\n(?: +from [^\n]*\n)*[^\n]* error: "
        r"(?:#error )?\"(?P<words>the host backend [^\"\n]*)",
        re.M,
    ),
]


def explain(compiler_output: str) -> str:
    """What the host backend refuses in the output of g++ or clang, one line each: ``gelu.cu:41: ...``.

    Output that names nothing refused comes back as it is, with CUDA's names for the 16-bit types.
    """
    found: dict[tuple[str, int, str], None] = {}
    for pattern in _COMPLAINTS:
        for match in pattern.finditer(compiler_output):
            groups = match.groupdict()
            place = (groups["file"], int(groups["line"]))
            if groups.get("words"):
                found[(*place, groups["words"])] = None
                continue
            name = groups.get("name")
            if name is None:  # clang names it by a caret under the source line
                source = compiler_output[: match.end()].splitlines()[-2]
                name = re.match(r"\w*", source[len(groups["caret"]) :]).group()
            why = next(
                (why for names, why in REFUSED if re.fullmatch(names, name)),
                "not a CUDA name, or one that the host backend lacks",
            )
            found[(*place, f"`{name}` is not supported by the host backend: {why}")] = None
    if not found:
        for ours, name in _TYPES.items():
            compiler_output = compiler_output.replace(ours, name)
        return compiler_output
    return "\n".join(f"{file}:{line}: {words}" for file, line, words in sorted(found))
