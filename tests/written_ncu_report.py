"""Writes a report of Nsight Compute as its extras/FileFormat describes the files, with as little as NVIDIA's module takes.

A file is "NVR" and a zero, and then messages of Protocol Buffers, each after its length: the file's header, a block's header
with the names of the metrics, and a message a launch.
"""

import struct
from pathlib import Path

H200 = {"architecture": 384, "implementation": 384, "chip": 384, "compute_capability_major": 9, "compute_capability_minor": 0}


def write(path: Path, launches: list[tuple[str, str, dict[str, float]]]) -> None:
    """launches: (kernel, the NVTX range that it was in, {metric: value}); an int is kept as one, a str as text."""
    device = {f"device__attribute_{name}": value for name, value in H200.items()}
    names = list(dict.fromkeys([*device, *(metric for _, _, metrics in launches for metric in metrics)]))
    results = b"".join(_sized(_launch(number, kernel, label, {**device, **metrics}, names))
                       for number, (kernel, label, metrics) in enumerate(launches, 1))
    attributes = b"".join(_field(3, _field(1, name) + _field(2, _value(value))) for name, value in H200.items())
    session = _field(1, 7) + _field(2, 1) + _field(6, _field(1, 0) + _field(2, "NVIDIA H200") + attributes)
    block = (_field(1, 0) + _field(2, len(launches)) + _field(3, session)
             + _field(4, b"".join(_field(1, name) for name in names)) + _field(5, len(results)))
    path.write_bytes(b"NVR\0" + _sized(_field(1, 10)) + _sized(block) + results)


def _launch(number: int, kernel: str, label: str, metrics: dict, names: list[str]) -> bytes:
    thread = 77
    counted = b"".join(_field(13, _field(1, names.index(name)) + _field(2, _value(value))) for name, value in metrics.items())
    nvtx = (_field(1, _field(1, 0) + _field(2, "<default domain>"))
            + _field(2, _field(1, thread) + _field(2, _field(1, 0) + _field(3, _field(1, label)))) + _field(4, 0))
    sizes = b"".join(_field(place, b"".join(_field(axis, 1) for axis in (1, 2, 3))) for place in (10, 11))
    return (_field(1, thread) + _field(2, number) + _field(3, 1) + _field(4, number) + _field(5, kernel) + _field(6, kernel)
            + _field(7, kernel) + _field(8, 1) + _field(9, b"") + sizes + counted + _field(15, b"") + _field(21, nvtx))


def _value(value: float | int | str) -> bytes:
    return _field({str: 1, float: 3, int: 4}[type(value)], value)


def _field(number: int, value: float | int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low]) if not rest else bytes([low | 128]) + _varint(rest)


def _sized(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message
