"""How many blocks an SM holds at a time: its limits, and which of them a kernel meets first."""

from __future__ import annotations

import ctypes

from labkit import machine, results
from labkit.report import keep, show_recorded

# CUdevice_attribute of the driver's cuda.h. torch gives some of these, and under names that change with its version.
_ATTRIBUTES = {"threads_a_warp": 10, "threads_a_block": 1, "threads_an_sm": 39, "blocks_an_sm": 106,
               "registers_an_sm": 82, "shared_bytes_a_block": 97, "shared_bytes_an_sm": 81,
               "shared_bytes_reserved_a_block": 111, "sms": 16, "clock_khz": 13}
_REGISTER_UNIT = 256  # registers are handed to a warp in units of so many
_PARTITIONS = 4  # of an SM; each has a quarter of the registers, and a warp stays in one


def limits() -> dict:
    """What the driver says of the current GPU and one of its SMs.

    Keys: name; capability ("9.0"); and as int threads_a_warp, threads_a_block, threads_an_sm, blocks_an_sm,
    registers_an_sm, shared_bytes_a_block (the most that a kernel may ask for), shared_bytes_an_sm,
    shared_bytes_reserved_a_block (which CUDA takes for itself), sms, clock_khz (the highest).
    Raises RuntimeError where there is no GPU, or the driver refuses.
    """
    gpu = machine.gpu()
    if gpu is None:
        raise RuntimeError("limits: torch sees no GPU here; see `labkit.doctor()`")
    import torch

    return {"name": gpu["name"], "capability": gpu["capability"]} | _asked_of_driver(torch.cuda.current_device())


def _asked_of_driver(ordinal: int) -> dict[str, int]:
    driver = ctypes.CDLL("libcuda.so.1")

    def call(function: str, *arguments) -> None:
        if code := getattr(driver, function)(*arguments):
            raise RuntimeError(f"limits: the CUDA driver's {function} returned error {code}")

    device, value = ctypes.c_int(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), ordinal)
    found = {}
    for name, attribute in _ATTRIBUTES.items():
        call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        found[name] = value.value
    return found


def sm_limits(name: str) -> list[dict]:
    """Shows and keeps the limits of one SM of this GPU as a table called `name` in results/; returns its rows.

    Without a GPU it shows the recorded table and returns [].
    """
    title = "What one SM holds at a time"
    if machine.backend() != "cuda":
        return show_recorded([name], title)
    found = limits()
    rows = [{"limit": label, "value": value} for label, value in {
        "threads a warp": found["threads_a_warp"],
        "threads a block": found["threads_a_block"],
        "threads": found["threads_an_sm"],
        "warps": found["threads_an_sm"] // found["threads_a_warp"],
        "blocks": found["blocks_an_sm"],
        "registers": found["registers_an_sm"],
        "shared memory, KiB": found["shared_bytes_an_sm"] / 1024,
        "shared memory a block, KiB": found["shared_bytes_a_block"] / 1024,
        "shared memory reserved a block, KiB": found["shared_bytes_reserved_a_block"] / 1024,
        "SMs of this GPU": found["sms"],
        "clock, MHz": found["clock_khz"] / 1000}.items()]
    results.note("measured", title, f"{len(rows)} limits asked of the driver")
    keep({name: results.table_of(title, rows)})
    return rows


def blocks_by_limit(limits: dict, threads: int, registers: int, shared_bytes: int = 0) -> dict:
    """How many blocks of a kernel one SM holds at a time, as each limit has it.

    limits: from `limits`, or the same keys. threads: of a block. registers: of a thread. shared_bytes: of a block.

    Returns how many blocks each limit allows by itself, under "warps", "blocks", "registers" and "shared memory"; the
    least of them as "blocks an SM"; which they are as "limited by", such as "warps, registers"; and the share of the
    SM's warp slots that those blocks fill as "occupancy" (1 is all). No block at all means that the kernel does not start.
    Raises ValueError for fewer than one thread, or more than a block may have, and for negative registers or bytes.
    """
    if not 1 <= threads <= limits["threads_a_block"]:
        raise ValueError(f"blocks_by_limit: threads is {threads}; a block has 1 to {limits['threads_a_block']}")
    if registers < 0 or shared_bytes < 0:
        raise ValueError(f"blocks_by_limit: registers is {registers} and shared_bytes {shared_bytes}; neither may be negative")
    warps = -(-threads // limits["threads_a_warp"])
    most_warps = limits["threads_an_sm"] // limits["threads_a_warp"]
    allowed = {"warps": most_warps // warps, "blocks": limits["blocks_an_sm"],
               "registers": _by_registers(limits, warps, registers), "shared memory": _by_shared_memory(limits, shared_bytes)}
    blocks = min(allowed.values())
    return {**allowed, "blocks an SM": blocks, "occupancy": blocks * warps / most_warps,
            "limited by": ", ".join(name for name, value in allowed.items() if value == blocks)}


def _by_registers(limits: dict, warps: int, registers: int) -> int:
    of_warp = _rounded_up(max(registers, 1) * limits["threads_a_warp"], _REGISTER_UNIT)
    return limits["registers_an_sm"] // _PARTITIONS // of_warp * _PARTITIONS // warps


def _by_shared_memory(limits: dict, shared_bytes: int) -> int:
    if shared_bytes > limits["shared_bytes_a_block"]:
        return 0
    unit = 128 if float(limits["capability"]) >= 8 else 256
    of_block = _rounded_up(shared_bytes + limits["shared_bytes_reserved_a_block"], unit)
    return limits["shared_bytes_an_sm"] // max(of_block, unit)


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
