"""`ptxas_words`: what `--ptxas-options=-v` prints, word by word, for one kernel with enough registers and with too few."""

from __future__ import annotations

import re

from labkit import machine, results
from labkit.arguments import count
from labkit.cubin import Cubin, NoCompiler, compile_cubin
from labkit.machine_code import ARCH, HOW, Code
from labkit.report import keep, show_recorded

# The words, in which (\d+) stands for a number, and what they mean. ptxas leaves out what is 0 of the last ones.
WORDS = {
    r"Compiling entry function '\w+' for '(\w+)'": "the kernel, its name mangled, and the architecture",
    r"(\d+) bytes stack frame": "local memory of a thread: arrays with an index that is no constant, and spills",
    r"(\d+) bytes spill stores": "registers put away into local memory, in the code, not counted by how often it runs",
    r"(\d+) bytes spill loads": "and fetched back",
    r"Used (\d+) registers": "of a thread; with the threads of a block they decide how many blocks an SM holds",
    r"used (\d+) barriers": "named barriers of a block: __syncthreads() takes one",
    r"(\d+) bytes cumulative stack size": "the stack of the deepest chain of calls",
    r"(\d+) bytes smem": "shared memory of a block, without what a launch adds",
    r"(\d+) bytes cmem\[0\]": "constant memory: the kernel's parameters and launch dimensions",
    r"(\d+) bytes cmem\[[1-9]\d*\]": "constant memory: constants of the compiler",
    r"Compile time = ([\d.]+) ms": "that ptxas took for this kernel",
}


def ptxas_words(name: str, code: Code, registers: int, arch: str | None = None) -> list[dict]:
    """Shows what ptxas says of a kernel, as `load` compiles it and with at most so many registers.

    name: what the table is called in results/. code: the kernel. registers: for -maxrregcount. arch: such as "sm_90"; by
    default that of the GPU here, else ARCH.

    Returns the rows: the words, with … in place of the number; what they mean; the number, and that with few registers; None
    where the words are not said. Without nvcc the recorded table is shown and [] returned. Raises what `compile_cubin` does.
    """
    if not isinstance(code, Code):
        raise TypeError(f"ptxas_words: code is {code!r}; it has to be a labkit.Code")
    count("ptxas_words", "registers", registers, least=1)
    title = f"What ptxas -v says of {code.name} v{code.version}, {code.kernel}"
    try:
        made = [compile_cubin(code.name, code.version, arch or machine.arch() or ARCH, [*code.flags, *more])
                for more in ((), (f"-maxrregcount={registers}",))]
    except NoCompiler as error:
        return show_recorded([name], title, str(error))
    few = f"-maxrregcount={registers}"
    rows = [{"words": _shown(words), "what they mean": meaning, "as load() has it": enough, few: spilled}
            for (words, meaning), enough, spilled in zip(WORDS.items(), *(_numbers(one, code.kernel) for one in made))
            if (enough, spilled) != (None, None)]
    results.note("built", name, f"{len(rows)} of ptxas's words")
    keep({name: results.table_of(f"{title}, by {made[0].made_by}", rows)}, HOW)
    return rows


def _shown(words: str) -> str:
    return re.sub(r"\((?:\\[dw]|\[\\d\.\])\+\)", "…", words).replace(r"\w+", "…").replace(r"[1-9]\d*", "…").replace("\\", "")


def _numbers(cubin: Cubin, kernel: str) -> list[int | str | None]:
    """What stands for the number in each of WORDS, for this kernel."""
    symbol = cubin.kernel(kernel).symbol
    said = re.search(rf"Compiling entry function '{symbol}' .*?(?=Compiling entry function|\Z)", cubin.log, re.DOTALL)[0]
    found = [re.search(words, said) for words in WORDS]
    return [None if match is None else match[1] if match[1].startswith("sm_") else round(float(match[1])) for match in found]
