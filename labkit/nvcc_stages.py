"""`stages`: the seconds that each stage of nvcc takes, of a file with torch's headers and of one without."""

from __future__ import annotations

import csv
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from labkit import build, machine, results, toolchain
from labkit.report import keep, show_recorded
from labkit.rungs import INCLUDE, SOURCES

STAGES = {"cudafe++": "takes host and device code apart", "cicc": "compiles the device's",
          "gcc (compiling)": "compiles the host's", "ptxas": "assembles the device's"}
FILES = {"torch/extension.h, s": "all_in_one.cu", "no header of torch, s": "gelu_one.cu"}


def stages(name: str) -> list[dict]:
    """Compiles the ladder's kernel with torch's headers in the .cu file and without them, and shows what each stage took.

    name: what the table is called in results/.

    A row a stage, as nvcc's own clock has it (--time), and the sum of the others. Without a GPU the recorded table is shown
    and [] returned, since it takes minutes on a small machine. Raises build.BuildError where nvcc fails.
    """
    title = "The stages of nvcc"
    if machine.backend() != "cuda":
        return show_recorded([name], title)
    measured = {column: _measured(SOURCES / file) for column, file in FILES.items()}
    rows = [{"stage": stage, "what it does": purpose, **{column: round(seconds.get(stage, 0), 2)
                                                         for column, seconds in measured.items()}}
            for stage, purpose in STAGES.items()]
    rows.append({"stage": "the others", "what it does": "preprocess, and put the parts together",
                 **{column: round(sum(s for stage, s in seconds.items() if stage not in STAGES), 2)
                    for column, seconds in measured.items()}})
    results.note("measured", title, f"{len(FILES)} files")
    keep({name: results.table_of(f"{title}, on {machine.cpu()}", rows)})
    return rows


def _measured(source: Path) -> dict[str, float]:
    """{stage: seconds} of one compilation."""
    from torch.utils import cpp_extension  # a second of import

    toolchain.point_torch_to_cuda()
    headers = [*cpp_extension.include_paths("cuda"), sysconfig.get_paths()["include"]]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "times.csv"
        command = [machine.find_nvcc(), *build.nvcc_flags(machine.arch(), None), *cpp_extension.COMMON_NVCC_FLAGS, "-DUSE_CUDA",
                   "-DTORCH_EXTENSION_NAME=timed", "-Xcompiler", "-fPIC", *(f"-I{place}" for place in INCLUDE),
                   *(word for place in headers for word in ("-isystem", place)), "--time", log, "-c", source,
                   "-o", Path(folder) / "timed.o"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            raise build.BuildError(build.first_error(done.stdout + done.stderr, build.build_root() / "stages.log"))
        return summed(log.read_text(encoding="utf-8"))


def summed(table: str) -> dict[str, float]:
    """{stage: seconds}, a stage that ran more than once added up, of what nvcc's --time writes: CSV, in milliseconds."""
    found: dict[str, float] = {}
    rows = list(csv.reader(table.splitlines(), skipinitialspace=True))
    heads = [head.strip() for head in rows[0]]
    phase, metric, unit = heads.index("phase name"), heads.index("metric"), heads.index("unit")
    for row in rows[1:]:
        if len(row) > max(phase, metric, unit) and row[unit].strip() == "ms":
            stage = row[phase].strip()
            found[stage] = found.get(stage, 0) + float(row[metric]) / 1e3
    return found
