"""`trace`: what a kernel loads and stores, counted per warp as a GPU counts it, and what is wrong with it; no GPU needed.

The trace mode of the host backend compiles the unmodified .cu file with calls before each load and store, and
kernels/host/trace.cpp counts and checks them. Here is the other half: tensors go in, and for each source line come out
the requests, sectors and bank conflicts of its accesses, and the findings.
"""

from __future__ import annotations

import ctypes
import dataclasses
import html
import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Sequence

import torch

from labkit import figures, results, trace_figure
from labkit.launching import Launch, extent_of, prepare
from labkit.modes import usual
from labkit.operator import Operator
from labkit.report import show_html
from labkit.trace_findings import Finding, findings_of

_ROLES = {"input": 0, "output": 1, "both": 2}
MOST_EVENTS = 30_000_000  # of one block between two barriers: about a gigabyte


@dataclasses.dataclass
class Access:
    """What one source line loads, stores or updates, summed over all warps of a launch.

    does: "reads", "writes" or "updates" (atomics). shared: shared memory, else global. requests: warp instructions;
    lanes: thread accesses in them. bytes: those that some lane of a request asked for, each counted once a request.
    Of global memory: sectors of 32 bytes that the requests touch, and the fewest that would hold the bytes. Of shared
    memory: wavefronts, the passes through the 32 banks, and the fewest for accesses of that width.
    example: the request that Trace.picture draws, of warp `warp` of block `block`, each lane moving `size` bytes: the
    addresses of its lanes (None: took no part), in bytes from the multiple of 512 at or before the start of `array`.
    starts: a bit for each lane that begins a group which shared memory serves together.
    """

    line: str
    source: str
    does: str
    shared: bool
    array: str
    requests: int = 0
    lanes: int = 0
    bytes: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    size: int = 0
    warp: int = 0
    block: int = 0
    starts: int = 0
    example: Sequence[int | None] = ()

    @property
    def place(self) -> str:
        """The line's number and text, such as "93: y[i] = x[i];"."""
        return f"{self.line.rpartition(':')[2]}: {self.source}" if self.source else self.line

    @property
    def conflicts(self) -> int:
        """Bank conflicts: wavefronts beyond the fewest."""
        return self.wavefronts - self.ideal_wavefronts

    def add(self, counts: dict) -> None:
        """Adds the counts of one instruction of this line."""
        for name in ("requests", "lanes", "bytes", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts"):
            setattr(self, name, getattr(self, name) + counts[name])
        if sum(a is not None for a in counts["example"]) > sum(a is not None for a in self.example):
            for name in ("size", "warp", "block", "starts", "example", "array"):
                setattr(self, name, counts[name])


@dataclasses.dataclass
class Trace:
    """What `labkit.trace` returns.

    name: what its tables are called in results/. title: what was traced. launches: a dict a launch: kernel, grid, block.
    accesses: an `Access` a source line and kind. findings: a `Finding` a fault; empty for a kernel in which none was seen.
    ended_early: whether the launch failed, so that the counts are those until then. outputs: the output tensors.
    writers: {output: (block, thread)}, int64 tensors of its shape with who wrote each element last; see `Recorder.writers`.
    """

    name: str
    title: str
    launches: list[dict]
    accesses: list[Access]
    findings: list[Finding]
    ended_early: bool = False
    outputs: tuple = ()
    writers: dict = dataclasses.field(default_factory=dict)

    def total(self, does: str, shared: bool = False) -> Access:
        """The sum over all lines that do so, such as total("reads")."""
        total = Access("", "", does, shared, "")
        for access in self.accesses:
            if (access.does, access.shared) == (does, shared):
                total.add({**dataclasses.asdict(access), "example": ()})
        return total

    def table(self) -> dict | None:
        """Global memory as a record of kind "table", a row a source line; None where nothing is accessed."""
        rows = []
        for label, access in self._labelled(shared=False):
            moved = trace_figure.SECTOR * access.sectors
            rows.append({"access": label, "requests": access.requests, "sectors": access.sectors,
                         "per request": round(access.sectors / access.requests, 3),
                         "ideal": round(access.ideal_sectors / access.requests, 3), "bytes moved": moved,
                         "useful, %": round(100 * access.bytes / moved, 1), "line": access.place})
        return results.table_of(f"{self.title}: sectors of global memory", rows, exact=True) if rows else None

    def shared_table(self) -> dict | None:
        """Shared memory likewise; None for a kernel that uses none. How atomics are served is not modelled."""
        rows = []
        for label, access in self._labelled(shared=True):
            counts = {"wavefronts": access.wavefronts, "per request": round(access.wavefronts / access.requests, 3),
                      "ideal": round(access.ideal_wavefronts / access.requests, 3), "bank conflicts": access.conflicts}
            if access.does == "updates":
                counts = dict.fromkeys(counts)
            rows.append({"access": label, "requests": access.requests, **counts, "line": access.place})
        return results.table_of(f"{self.title}: wavefronts of shared memory", rows, exact=True) if rows else None

    def picture(self, line: int | None = None, does: str | None = None, shared: bool = False) -> None:
        """Shows one request of a warp: its 32 lanes against the 32-byte sectors they touch, or the banks.

        line: of the .cu file; does: "reads", "writes" or "updates"; by default the access with the most sectors (or
        wavefronts) a request. shared: of shared memory. Raises ValueError where there is no such access.
        """
        chosen = [access for access in self.accesses if access.shared == shared and does in (None, access.does)
                  and line in (None, int(access.line.rpartition(":")[2]))]
        if not chosen:
            have = ", ".join(f"{a.does} {a.line}" for a in self.accesses if a.shared == shared)
            raise ValueError(f"picture: no such access; this trace has {have or 'none of that memory'}")
        access = max(chosen, key=lambda a: (a.wavefronts if shared else a.sectors) / a.requests)
        record = trace_figure.record(access)
        results.add(f"{self.name}_{access.does}{'_shared' * shared}", record)
        show_html(lambda: f"<figure>{trace_figure.lanes_svg(record)}<figcaption>{html.escape(record['title'])}.</figcaption>"
                          "</figure>", trace_figure.lanes_text(record))

    def show(self) -> None:
        """Shows the tables and the findings."""
        tables = [table for table in (self.table(), self.shared_table()) if table]
        found = [str(finding) for finding in self.findings] or ["No fault found."]
        show_html(lambda: "".join([*(figures.html_table(table, results.EXACT) for table in tables),
                                   *(f"<p>{html.escape(line)}</p>" for line in found)]),
                  "\n".join([*(f"{table['title']}. {results.EXACT}.\n{figures.text_table(table)}" for table in tables),
                             *found]))

    def _labelled(self, shared: bool) -> list[tuple[str, Access]]:
        """Each line's access with a name, such as "reads" or, where several lines read, "reads, 102"; then their sums."""
        chosen = [access for access in self.accesses if access.shared == shared]
        rows = []
        for does in ("reads", "writes", "updates"):
            lines = [access for access in chosen if access.does == does]
            rows += [(does if len(lines) == 1 else f"{does}, {a.line.rpartition(':')[2]}", a) for a in lines]
            rows += [(f"{does} in all", self.total(does, shared))] if len(lines) > 1 else []
        return rows


@usual
def trace(operator: Operator | str, version: int | None = None, mode: str | None = None,
          size: int | Sequence[int] | None = None, dtype: torch.dtype | None = None,
          inputs: Sequence[torch.Tensor] | None = None, name: str | None = None, show: bool = True) -> Trace:
    """Runs one launch of an operator on the CPU and reports each of its memory accesses; shows the tables and findings.

    operator: from `labkit.load`, or the name of a folder of kernels/. version: the latest unless given. mode: the first
    one of its reference, such as "forward", unless given. size: the shape of the inputs, which are then drawn (seeded
    normal numbers) in `dtype`; unless given, the reference's smallest case with 4096 elements. dtype: the reference's first
    unless given. inputs: the tensors themselves, instead of size and dtype; they are copied, and keep their strides and their
    offset from 512 bytes.
    name: what its tables are called in results/, such as "copy_v1_forward" unless given.
    show: whether tables and findings are shown, and kept for `record`; they are returned in any case.

    Counted for each source line: requests, which are warp instructions; the 32-byte sectors that they touch; bytes that
    some lane asked for against bytes moved; the wavefronts and bank conflicts of shared memory; requests of atomics.
    Found, with line, threads and address: data races, barriers that not all threads of a block reach, shuffles that read a
    lane which takes no part, accesses outside the tensors and shared arrays, reads of what nothing wrote, misaligned vectors,
    writes to inputs, outputs left unwritten.

    The counts follow from the source, the launch and the sizes alone: exact, and the same on every machine. They are those of
    the code that g++ makes. nvcc may keep in a register what g++ loads twice, join neighbouring accesses, unroll loops, and
    turn branches into selections. A vector (float4) counts as one access; its members read one by one count as several, as
    does a vector of three, or any other structure: each 4 bytes. Lanes that part reconverge at the first point that all their
    paths share; lanes that have returned are not waited for.

    Not modelled: caches, so sectors are what the L1 is asked for and not what the memory delivers; timing; what fences do.
    Threads of different blocks, or of one block without a barrier, are ordered by atomics on one address alone, which may lie
    in memory that a launcher allocates. Not seen:
    __device__ variables, memory that a launcher allocates, arrays that spill from registers, __shared__ in headers from
    elsewhere than kernels/, memcpy of a length unknown to the compiler, and an access that strays from one tensor right into
    another. Threads that write different bytes of one element count as a race. Where a launch ends early, as after a wild
    pointer, the counts are those until then.

    Known to be wrong. Of races between blocks some stay unreported: where a block uses an atomic and does not look at its
    result, and where one of several earlier readers orders itself by no atomic. A ticket of a warp that only __syncwarp
    orders is reported, though right, and so is an order that an atomic on shared memory makes. Where a lane returns inside a
    loop, later accesses of the others may count as more requests than they are. A 16-bit float that a function returns
    straight into memory (`y[i] = f(x)`) is a store unseen where the compiler does not inline f. Local variables of more than
    128 KiB a thread, and recursion without an end, can end Python.

    Needs g++ (clang has no such instrumentation of vectors); takes some microseconds a thread. Returns a Trace. Raises
    FileNotFoundError, ValueError and BuildError as `load` does, and RuntimeError for arguments the operator refuses.
    """
    found = traced(prepare(operator, "trace", version, mode, size, dtype, inputs), name)
    if show:
        _keep(found)
        found.show()
    return found


def traced(launch: Launch, name: str | None = None) -> Trace:
    """What `trace` returns of a launch that `prepare` has made for the backend "trace"; raises RuntimeError as it does."""
    recorder = Recorder(launch.operator.library, launch.operator.source)
    given = [recorder.array(t, label, "input") for t, label in zip(launch.inputs, launch.input_names, strict=True)]
    out = [recorder.array(t, label, "output") for t, label in zip(launch.new_outputs(), launch.output_names, strict=True)]
    refused = None
    try:
        launch(given, out)
    except RuntimeError as error:
        refused = error
    found = recorder.finish(name or f"{launch.operator.name}_v{launch.version}_{launch.mode}", launch.title)
    if refused and not (found.launches and found.findings):
        raise refused
    found.ended_early = refused is not None
    found.outputs = tuple(t.clone() for t in out)
    found.writers = {label: recorder.writers(label, t) for t, label in zip(out, launch.output_names)}
    return found


def _keep(found: Trace) -> None:
    for suffix, table in (("trace", found.table()), ("trace_shared", found.shared_table())):
        if table:
            results.add(f"{found.name}_{suffix}", table)
    outcome = f"{len(found.findings)} findings" if found.findings else "no fault found"
    results.note("exact", found.title, f"{sum(a.requests for a in found.accesses)} requests traced, {outcome}")


class Recorder:
    """One trace of a library that was built in trace mode: arrays first, then launches, then `finish`."""

    def __init__(self, library: Path, source: Path, most_events: int = MOST_EVENTS):
        """library: the built .so; source: its .cu file; most_events: accesses and basic blocks of a block between barriers."""
        self.library, self.source = library, source
        self._calls = ctypes.CDLL(str(library))
        self._calls.trace_array.restype = ctypes.c_void_p
        self._calls.trace_end.restype = ctypes.c_char_p
        self._calls.trace_begin(ctypes.c_size_t(most_events))
        self._names: list[str] = []

    def array(self, tensor: torch.Tensor, name: str, role: str) -> torch.Tensor:
        """A copy of a CPU tensor, with its strides and alignment, at an address where accesses to it are seen.

        role: "input", which a kernel only reads; "output", which it has to write; or "both". The copy lives until the
        next Recorder. Raises MemoryError where there is no room.
        """
        item = tensor.element_size()
        extent = extent_of(tensor)
        address = self._calls.trace_array(name.encode(), ctypes.c_size_t(extent * item), ctypes.c_size_t(item),
                                          ctypes.c_size_t(tensor.storage_offset() * item % 512), _ROLES[role])
        self._names.append(name)
        if address is None:
            raise MemoryError(f"trace: no room for `{name}` ({extent * item:,} bytes); trace a smaller size")
        if extent == 0:
            return torch.empty_like(tensor)
        flat = torch.frombuffer((ctypes.c_byte * (extent * item)).from_address(address), dtype=tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def writers(self, name: str, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(block, thread) of the last store or atomic to each element of the array `name`, made from the tensor `like`.

        int64 tensors of its shape. Blocks count through all launches since the beginning, threads within a block, x first
        in both; -1 where nothing was written.
        """
        flat = torch.empty(extent_of(like), 2, dtype=torch.int32)
        if len(flat):
            self._calls.trace_writers(ctypes.c_size_t(self._names.index(name)), ctypes.c_void_p(flat.data_ptr()))
        block, thread = (one.long().as_strided(like.shape, like.stride()) if len(flat) else torch.empty(like.shape).long()
                         for one in flat.unbind(1))
        return block, thread

    def finish(self, name: str, title: str) -> Trace:
        """What the launches since the beginning did."""
        raw = json.loads(self._calls.trace_end())
        lines = _Lines(self.library, self.source, raw)
        accesses: dict[tuple, Access] = {}
        for counts in raw["counts"]:
            line = lines.of(counts["chain"])
            access = accesses.setdefault((line, counts["does"], counts["shared"]),
                                         Access(line, lines.text(line), counts["does"], bool(counts["shared"]), ""))
            access.add(counts)
        ordered = sorted(accesses.values(), key=lambda a: (a.line.rpartition(":")[0], int(a.line.rpartition(":")[2]), a.does))
        return Trace(name, title, raw["launches"], ordered, findings_of(raw, lines.of, ordered))


class _Lines:
    """Source lines of instructions, by the debug information of the library."""

    def __init__(self, library: Path, source: Path, raw: dict):
        self._source = source
        addresses = sorted({pc for entry in [*raw["counts"], *raw["findings"]]
                            for chain in (entry["chain"], entry.get("other_chain", ())) for pc in chain})
        done = subprocess.run(["addr2line", "-i", "-a", "-e", str(library)], input="\n".join(map(hex, addresses)),
                              capture_output=True, text=True, check=True)
        self._frames: dict[int, list[tuple[str, int]]] = defaultdict(list)
        at = 0
        for line in done.stdout.splitlines():
            if line.startswith("0x"):
                at = int(line, 16)
            else:
                file, _, number = line.partition(" (discriminator")[0].rpartition(":")
                self._frames[at].append((file, int(number) if number.isdigit() else 0))

    def of(self, chain: Sequence[int]) -> str:
        """Where an instruction stands, as "gelu.cu:102": of the calls that led to it the innermost in the .cu file."""
        frames = [frame for pc in chain for frame in self._frames[pc]]
        inside = [frame for frame in frames if Path(frame[0]).name == self._source.name]
        beside = [frame for frame in frames if Path(frame[0]).parent == self._source.parent]
        file, number = (inside or beside or [(self._source.name, 0)])[0]
        return f"{Path(file).name}:{number}"

    def text(self, line: str) -> str:
        """The text of such a line, where it is one of the .cu file."""
        name, _, number = line.rpartition(":")
        lines = self._source.read_text(encoding="utf-8").splitlines()
        return lines[int(number) - 1].strip() if name == self._source.name and 0 < int(number) <= len(lines) else ""

