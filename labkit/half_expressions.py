"""`half_macros`: which expressions on 16-bit types compile under the __CUDA_NO_… macros. It needs nvcc and no GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from labkit import machine, results
from labkit.report import keep, show_recorded

COMPILES = "compiles"
ARTICLE = ("__CUDA_NO_HALF_OPERATORS__", "__CUDA_NO_HALF_CONVERSIONS__")
BFLOAT16 = "__CUDA_NO_BFLOAT16_OPERATORS__"

# {expression: (what a function returns, its parameters, what it returns in C++)}
EXPRESSIONS = {
    "half + half": ("__half", "__half a, __half b", "a + b"),
    "half < half": ("bool", "__half a, __half b", "a < b"),
    "half2 + half2": ("__half2", "__half2 a, __half2 b", "a + b"),
    "float x = half": ("float", "__half a", "a"),
    "half h = float": ("__half", "float a", "a"),
    "bfloat16 + bfloat16": ("__nv_bfloat16", "__nv_bfloat16 a, __nv_bfloat16 b", "a + b"),
    "float x = bfloat16": ("float", "__nv_bfloat16 a", "a"),
    "bfloat16 b = float": ("__nv_bfloat16", "float a", "a"),
    "__hadd(half, half)": ("__half", "__half a, __half b", "__hadd(a, b)"),
    "__hlt(half, half)": ("bool", "__half a, __half b", "__hlt(a, b)"),
    "__hadd2(half2, half2)": ("__half2", "__half2 a, __half2 b", "__hadd2(a, b)"),
    "__half2float(half)": ("float", "__half a", "__half2float(a)"),
    "__float2half(float)": ("__half", "float a", "__float2half(a)"),
    "__hadd(bfloat16, bfloat16)": ("__nv_bfloat16", "__nv_bfloat16 a, __nv_bfloat16 b", "__hadd(a, b)"),
    "__bfloat162float(bfloat16)": ("float", "__nv_bfloat16 a", "__bfloat162float(a)"),
    "__float2bfloat16(float)": ("__nv_bfloat16", "float a", "__float2bfloat16(a)"),
}
# {an expression that macros take away: the one that does the same and stays}
INSTEAD = {"half + half": "__hadd(half, half)", "half < half": "__hlt(half, half)", "half2 + half2": "__hadd2(half2, half2)",
           "float x = half": "__half2float(half)", "half h = float": "__float2half(float)",
           "bfloat16 + bfloat16": "__hadd(bfloat16, bfloat16)", "float x = bfloat16": "__bfloat162float(bfloat16)",
           "bfloat16 b = float": "__float2bfloat16(float)"}


def torch_macros() -> tuple[str, ...]:
    """The macros of this kind that torch gives to every nvcc of `load`."""
    from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

    return tuple(flag.removeprefix("-D") for flag in COMMON_NVCC_FLAGS if flag.startswith("-D__CUDA_NO_"))


def half_macros(name: str) -> list[dict]:
    """Compiles each expression of EXPRESSIONS under several sets of macros, and shows which the compiler takes.

    name: what the tables are called in results/: <name> has a row an expression and a column a set of macros, with whether it
    compiles under them; <name>_errors what nvcc says of those of INSTEAD under all macros, and what to write instead;
    <name>_torch the macros that torch sets, and whether the article names them.

    Returns the rows of the first. Without nvcc it shows the recorded tables and returns []. RuntimeError, with nvcc's last
    words, where nvcc fails on something else than an expression.
    """
    title = "What compiles on 16-bit types"
    if machine.nvcc_version() is None:
        return show_recorded([name, f"{name}_errors", f"{name}_torch"], title, "there is no nvcc here")
    sets = {"no macro": (), "no half operators": ARTICLE[:1], "no half conversions": ARTICLE[1:], "the article's two": ARTICLE,
            "torch's": torch_macros(), "and no bfloat16 operators": (*torch_macros(), BFLOAT16)}
    with ThreadPoolExecutor() as pool:
        columns = dict(zip(sets, pool.map(outcomes, sets.values())))
    rows = [{"expression": label, **{of: found[label] == COMPILES for of, found in columns.items()}} for label in EXPRESSIONS]
    under_all = columns["and no bfloat16 operators"]
    errors = [{"expression": label, "nvcc says": under_all[label], "write instead": instead}
              for label, instead in INSTEAD.items()]
    results.note("exact", title, f"{len(rows)} expressions under {len(sets)} sets of macros")
    keep({name: results.table_of(title, rows),
          f"{name}_errors": results.table_of("What nvcc says under all of these macros, and what to write instead", errors),
          f"{name}_torch": results.table_of("Macros that torch's load() sets", [
              {"macro": macro, "in the article": macro in ARTICLE} for macro in torch_macros()])},
         f"By nvcc {machine.nvcc_version()}")
    return rows


def outcomes(macros: tuple[str, ...]) -> dict[str, str]:
    """{expression: COMPILES, or the compiler's first words on it} under these macros."""
    lines = [f"__device__ {result} f{k}({parameters}) {{ return {text}; }}"
             for k, (result, parameters, text) in enumerate(EXPRESSIONS.values())]
    heads = ["#include <cuda_bf16.h>", "#include <cuda_fp16.h>"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "expressions.cu"
        source.write_text("\n".join([*heads, *lines, ""]), encoding="utf-8")
        done = subprocess.run([machine.find_nvcc(), "-arch=sm_90", *(f"-D{macro}" for macro in macros), "-ptx", source, "-o",
                               source.with_suffix(".ptx")], capture_output=True, text=True)
    said: dict[int, str] = {}
    for line, words in re.findall(r"expressions\.cu\((\d+)\): error(?: #\S+)?: (.*)", done.stdout + done.stderr):
        said.setdefault(int(line), re.sub(r"\s+", " ", words).strip(" :"))
    if done.returncode and not said:
        raise RuntimeError(f"half_macros: nvcc failed: {done.stderr.strip()[-2000:]}")
    return {label: said.get(k + len(heads) + 1, COMPILES) for k, label in enumerate(EXPRESSIONS)}
