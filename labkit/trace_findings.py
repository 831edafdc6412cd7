"""The faults that a trace has found, in words."""

from __future__ import annotations

import dataclasses
import re
from typing import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class Finding:
    """One fault: its kind; where, as "gelu.cu:102"; in words, with threads and addresses; how often it was seen.

    other_line: of a race, where the other access is.
    """

    kind: str
    line: str
    text: str
    count: int
    other_line: str | None = None

    def __str__(self) -> str:
        return self.text if self.line.endswith(":0") else f"{self.line}: {self.text}"  # 0: no line is known


def findings_of(raw: dict, line_of: Callable[[Sequence[int]], str], accesses: Sequence) -> list[Finding]:
    """The findings of a trace, barriers and races first, since other faults may follow from them.

    raw: what trace.cpp tells. line_of: gives the line of a chain of calls.
    """
    races: dict[tuple, Finding] = {}
    found = []
    for fault in raw["findings"]:
        line = line_of(fault["chain"])
        if fault["kind"].startswith("race"):
            race = _race(fault, line, line_of(fault["other_chain"]))
            first = races.setdefault((race.kind, race.line, race.other_line), race)
            if first is not race:
                races[race.kind, race.line, race.other_line] = dataclasses.replace(first, count=first.count + race.count)
        elif fault["kind"] == "barrier not reached by all":
            line = f"{fault['file'].rpartition('/')[2]}:{fault['line']}"
            text = (f"{fault['barrier']} is reached by {fault['reached']} of the block's {fault['threads']} threads: "
                    f"{fault['thread']} ends without it. CUDA leaves undefined what happens then: since Volta the barrier "
                    "waits only for threads that have not ended, and older GPUs may hang")
            found.append(Finding(fault["kind"], line, text, fault["count"]))
        elif fault["kind"] == "shuffle from an absent lane":
            line = f"{fault['file'].rpartition('/')[2]}:{fault['line']}"
            text = (f"{fault['kind']}: {fault['thread']} reads lane {fault['lane']} of its warp in {fault['shuffle']}, and "
                    f"that lane {fault['why']}; what it gets is undefined")
            found.append(Finding(fault["kind"], line, text, fault["count"]))
        elif fault["kind"] != "launch failed":
            wild = "a null pointer" if fault["address"] < 1 << 16 else "a pointer to far outside of every array"
            what = f"{fault.get('does', 'reads')} {_place(fault)}" if "array" in fault else f"follows {wild}"
            text = f"{fault['kind']}: {fault['thread']} {what}"
            found.append(Finding(fault["kind"], line, text, fault["count"]))
        elif not re.fullmatch("(misaligned )?access.*", fault["message"]):  # those are findings of their own
            place = re.search(r"\bat ([\w.]+\.cuh?:\d+)", fault["message"])
            found.append(Finding(fault["kind"], place[1] if place else line, fault["message"], fault["count"]))
    for gap in raw["unwritten"]:
        writers = [a.line for a in accesses if a.does == "writes" and a.array == gap["array"] and not a.shared]
        found.append(Finding("output left unwritten", writers[0] if writers else line_of(()), _gap(gap), gap["items"]))
    found = [dataclasses.replace(f, text=f.text + _times(f)) for f in [*found, *races.values()]]
    rank = {"launch failed": 0, "barrier not reached by all": 0, "race": 1, "race in a warp": 1, "race between blocks": 1}
    return sorted(found, key=lambda f: (rank.get(f.kind, 2), f.line.rpartition(":")[0],
                                        int(f.line.rpartition(":")[2]), f.kind))


def _race(fault: dict, line: str, other: str) -> Finding:
    """The two accesses are not ordered, so a read comes first in the words, whichever came first in this run."""
    first, second = (fault["thread"], fault["does"], line), (fault["other_thread"], fault["other_does"], other)
    if second[1] == "reads":
        first, second = second, first
    missing = {"race": "no __syncthreads() lies between", "race in a warp": "no __syncwarp() lies between",
               "race between blocks": "nothing orders blocks; an atomic would"}[fault["kind"]]
    where = f"at {second[2]}" if first[2] != second[2] else "at the same line"
    if first[1:] == second[1:]:
        missing = "nothing orders the two"
    text = f"{fault['kind']}: {first[0]} {first[1]} {_place(fault)}; {second[0]} {second[1]} it {where}; {missing}"
    return Finding(fault["kind"], first[2], text, fault["count"], second[2])


def _place(fault: dict) -> str:
    """The address in words: "y[4096], the first after its 4096 elements", "16 bytes at byte 132 of `tile`"."""
    offset, item, size = fault["offset"], fault["item"], fault["size"]
    if fault["shared"]:
        where = f"byte {offset} of shared array `{fault['array']}`, which has {fault['bytes']}"
    else:
        where = f"{fault['array']}[{offset // item}], of {fault['bytes'] // item} elements"
    return where if size == item and not fault["shared"] else f"{size} bytes at {where}"


def _times(found: Finding) -> str:
    return f" ({found.count:,} times)" if found.count > 1 and found.kind != "output left unwritten" else ""


def _gap(gap: dict) -> str:
    if gap["items"] == gap["of"]:
        return f"output left unwritten: nothing writes `{gap['array']}`"
    if gap["items"] == 1:
        return f"output left unwritten: {gap['array']}[{gap['first']}], of {gap['of']} elements"
    return (f"output left unwritten: {gap['items']:,} of the {gap['of']:,} elements of {gap['array']}, from [{gap['first']}] "
            f"to [{gap['last']}]")
