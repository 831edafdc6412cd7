"""`flags`, `flag_errors` and `flag_times`: what one flag of nvcc changes in a kernel's machine code, numbers and time.

The first needs nvcc and no GPU. Each row stands for one change of the flags that `load` gives; the first changes nothing.
"""

from __future__ import annotations

import contextlib
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from labkit import machine, results
from labkit.build import load
from labkit.cubin import Cubin, Kernel, NoCompiler, compile_cubin
from labkit.disassembly import Instruction
from labkit.machine_code import ARCH, HOW, Code, counts, with_columns
from labkit.mutants import mutant
from labkit.operator import Operator, python_part
from labkit.precision import error_in_ulp, every_finite
from labkit.report import keep, show_recorded
from labkit.timing import bench


@dataclass(frozen=True)
class Change:
    """Flags added to those of `load`, flags left out, and another architecture where one is named."""

    added: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    arch: str | None = None


DEFAULT = "as load() has it"
MACROS = ("-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__")
CHANGES = {
    DEFAULT: Change(),
    "-arch=sm_80": Change(arch="sm_80"),
    "-dc": Change(("-dc",)),
    "--default-stream per-thread": Change(("--default-stream=per-thread",)),
    "--ptxas-options=-v": Change(("--ptxas-options=-v",)),
    "--fmad=true": Change(("--fmad=true",)),
    "-O3": Change(("-O3",)),
    "without the two macros": Change(without=MACROS),
    "without -lineinfo": Change(without=("-lineinfo",)),
    "-fmad=false": Change(("-fmad=false",)),
    "-ftz=true": Change(("-ftz=true",)),
    "-prec-div=false": Change(("-prec-div=false",)),
    "-prec-sqrt=false": Change(("-prec-sqrt=false",)),
    "the last three": Change(("-ftz=true", "-prec-div=false", "-prec-sqrt=false")),
    "--use_fast_math": Change(("--use_fast_math",)),
    "-Xptxas -O1": Change(("-Xptxas=-O1",)),
    "-Xptxas -O0": Change(("-Xptxas=-O0",)),
}
_ALWAYS = ("flag", "same machine code", "instructions", "registers")
RUN = ("-fmad=false", "-ftz=true", "--use_fast_math", "-Xptxas -O1")  # what is run beside the default
VERSIONS = (1, 7)  # tanhf, and hardware exp2 and reciprocal
SHAPE = (16384, 16384)

# GeLU applied TIMES times to a value in a register: the bytes of one, the arithmetic of TIMES.
TIMES = 16
ONCE = "one_vector<Mode, T>(in, out);"
REPEATED = (f"{ONCE}\n        for (int t = 1; t < {TIMES}; ++t) {{\n"
            f"            for (int k = 0; k < Mode::IN; ++k) in[k] = out[k % Mode::OUT];\n            {ONCE}\n        }}")


# -- machine code -------------------------------------------------------------------------------------------

def flags(name: str, code: Code | Path, arch: str | None = None) -> list[dict]:
    """Compiles a kernel under each change of CHANGES and counts its instructions beside those of the default.

    name: what the table is called in results/. code: a kernel of an operator, or a .cu file whose kernel has the file's name.
    arch: such as "sm_90"; by default that of the GPU here, else ARCH.

    Returns the rows: flag; same machine code (instruction by instruction, operands included); instructions and registers;
    and of these what the flags change: fused multiply-adds, other products and sums, special functions, instructions that
    flush denormals (.FTZ), calls of routines. Without nvcc or nvdisasm the
    recorded table is shown and [] returned. Raises what `compile_cubin` does.
    """
    if not isinstance(code, (Code, Path)):
        raise TypeError(f"flags: code is {code!r}; it has to be a labkit.Code, or the pathlib.Path of a .cu file")
    source = code if isinstance(code, Path) else None
    code = Code(source.stem, None, source.stem) if source else code
    title = f"{source.name if source else f'{code.name} v{code.version}, {code.kernel}'}: one flag changed"
    try:
        with ThreadPoolExecutor() as pool:
            compiled = list(pool.map(partial(_compiled, code, arch or machine.arch() or ARCH, source), CHANGES.values()))
        made, _, default = compiled[0]
        rows = [_row(label, default, *found) for label, (_, *found) in zip(CHANGES, compiled)]
        rows = with_columns(rows, lambda column, cells: column in _ALWAYS or len(set(cells)) > 1)
    except NoCompiler as error:
        return show_recorded([name], title, str(error))
    results.note("built", name, f"{sum(row['same machine code'] for row in rows[1:])} of {len(rows) - 1} changes leave the "
                                "machine code as it is")
    keep({name: results.table_of(f"{title}, by {made.made_by}", rows)}, HOW)
    return rows


def _compiled(code: Code, arch: str, source: Path | None, change: Change) -> tuple[Cubin, Kernel, list[Instruction]]:
    cubin = compile_cubin(code.name, code.version, change.arch or arch, [*code.flags, *change.added], source, change.without)
    kernel = cubin.kernel(code.kernel)
    return cubin, kernel, cubin.code(kernel)


def _row(label: str, default: list[Instruction], kernel: Kernel, instructions: list[Instruction]) -> dict:
    found = counts(instructions)
    return {"flag": label, "same machine code": [one.text for one in instructions] == [one.text for one in default],
            "instructions": len(instructions), "registers": kernel.registers,
            **{column: found[column] for column in ("fused (FFMA)", "FMUL, FADD", "special functions")},
            ".FTZ": sum(".FTZ" in each.opcode for each in instructions),
            "calls": sum(each.opcode.startswith("CALL") for each in instructions)}


# -- numbers ------------------------------------------------------------------------------------------------

def flag_errors(name: str) -> list[dict]:
    """Runs GeLU's forward of VERSIONS under each flag of RUN on all numbers of 16 bits and on every 509th of float32.

    name: what the table is called in results/.

    A row a version and flag. For each dtype the largest error in ULP where |x| <= 3 and the exact result is a normal number,
    and in a second column where it is a denormal one; "NaN" where an output is none. Without a GPU the recorded table is
    shown and [] returned.
    """
    title = "GeLU's error with one flag changed, in ULP, |x| ≤ 3"
    if machine.backend() != "cuda":
        return show_recorded([name], title)
    exact = python_part("gelu", "reference").gelu
    rows = [{"flag": label, **_errors(operator, exact)} for label, operator in _operators().items()]
    results.note("exact", title, f"{len(rows)} builds")
    keep({name: results.table_of(title, rows)})
    return rows


def inputs_of(dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """All finite numbers of a 16-bit type, or every 509th of float32, with |x| <= 3."""
    if dtype == torch.float32:
        x = torch.arange(-(2**31), 2**31, 509, device=device).to(torch.int32).view(torch.float32)
    else:
        x = every_finite(dtype, device)
    return x[x.abs() <= 3]  # a NaN is none of them


def _errors(operator: Operator, exact) -> dict[str, float | str]:
    found = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = inputs_of(dtype, operator.device)
        y = exact(x.double())
        error = error_in_ulp(operator.ops.forward(x, operator.latest), y)
        normal = y.abs() >= torch.finfo(dtype).tiny
        short = str(dtype).removeprefix("torch.")
        for column, part in ((short, error[normal]), (f"{short}, denormal", error[~normal])):
            worst = part.max().item()
            found[column] = round(worst, 4) if worst < float("inf") else "NaN"
    return found


def _operators() -> dict[str, Operator]:
    """{"v1", "v1, -fmad=false", ...: the build}."""
    with contextlib.redirect_stdout(io.StringIO()):  # a line for each of ten builds
        return {_label(version, flag): load("gelu", version, cuda_flags=CHANGES[flag].added)
                for version in VERSIONS for flag in (DEFAULT, *RUN)}


def _label(version: int, flag: str) -> str:
    return f"v{version}" if flag == DEFAULT else f"v{version}, {flag}"


# -- time ---------------------------------------------------------------------------------------------------

def flag_times(name: str) -> None:
    """Times GeLU's forward of VERSIONS under each flag of RUN, where memory is the limit, and TIMES of it where arithmetic is.

    name: what the tables are called in results/: <name>_float32 and <name>_bfloat16, GeLU at SHAPE; <name>_repeated, version 4
    changed so that it applies GeLU TIMES times to each value in registers, float32. Each is one `bench`, with its check of the
    timed outputs. Without a GPU the recorded tables are shown.
    """
    on_gpu = machine.backend() == "cuda"
    labels = [_label(version, flag) for version in VERSIONS for flag in (DEFAULT, *RUN)]
    operators = _operators() if on_gpu else dict.fromkeys(labels)
    exact = python_part("gelu", "reference").gelu
    for dtype, tolerance in ((torch.float32, (1e-3, 2e-3)), (torch.bfloat16, (1e-2, 2e-3))):
        _bench(f"{name}_{str(dtype).removeprefix('torch.')}", operators, dtype, exact, tolerance,
               "GeLU forward, one flag changed")
    repeated = {_label(4, flag): repeated_gelu("cuda", CHANGES[flag].added) if on_gpu else None for flag in (DEFAULT, *RUN)}
    _bench(f"{name}_repeated", repeated, torch.float32, partial(_repeat, exact), (3e-2, 2e-3),
           f"GeLU {TIMES} times in registers, one flag changed")


def repeated_gelu(backend: str, cuda_flags: tuple[str, ...] = ()) -> Operator:
    """Version 4 of gelu, changed so that it applies the function TIMES times to each vector."""
    with contextlib.redirect_stdout(io.StringIO()):
        return mutant("gelu", 4, ONCE, REPEATED, backend, cuda_flags)


def _repeat(function, x: torch.Tensor) -> torch.Tensor:
    for _ in range(TIMES):
        x = function(x)
    return x


def _bench(name: str, operators: dict[str, Operator | None], dtype: torch.dtype, exact, tolerance: tuple[float, float],
           title: str) -> None:
    variants = {label: lambda x, operator=operator: operator.ops.forward(x, operator.latest)
                for label, operator in operators.items()}
    bench(name, {"copy": torch.clone, **variants}, lambda: (torch.randn(SHAPE, device="cuda").mul_(2.5).to(dtype),),
          bytes=2 * SHAPE[0] * SHAPE[1] * dtype.itemsize, limit="copy", reference=lambda x: exact(x.double()),
          tolerance=tolerance, title=title)
