"""The host backend: CUDA C++ on the CPU gives what CUDA promises."""

import ctypes
import time

import numpy as np
import pytest
from host_build import INVALID_DEVICE, NOT_SUPPORTED, call, library

# ---- indices, arguments, device ----


@pytest.mark.parametrize("grid, block", [
    ((1, 1, 1), (1, 1, 1)), ((3, 2, 4), (5, 3, 2)), ((70, 1, 3), (64, 2, 1)), ((1, 300, 1), (1, 1, 64)),
    ((2, 1, 1), (1024, 1, 1)),
])
def test_indices(grid, block):
    threads = np.prod(block)
    out = np.zeros((np.prod(grid) * threads, 12), np.uint32)
    assert call(library("geometry").run_indices, out, *grid, *block) == 0
    bz, by, bx, tz, ty, tx = np.indices((*grid[::-1], *block[::-1])).reshape(6, -1)
    expected = np.stack([tx, ty, tz, bx, by, bz], axis=1)
    np.testing.assert_array_equal(out[:, :6], expected)
    np.testing.assert_array_equal(out[:, 6:], np.tile([*block, *grid], (len(out), 1)))


def test_unsigned_products_wrap():
    out = np.zeros(2, np.int64)
    assert call(library("geometry").run_wrapped, out, 1 << 22 | 1) == 0
    assert out.tolist() == [1024, (1 << 32) + 1024]


def test_arguments_are_converted_once_and_copied_for_each_thread():
    out, counter = np.zeros(5, np.float32), np.array([41], np.int32)
    assert call(library("geometry").run_arguments, out, counter, 64) == 0
    assert counter[0] == 42
    assert out.tolist() == [3.0, 1.0, 42.0 + 63, 10.5, 40.0]


@pytest.mark.parametrize("which, total", [(0, 2), (1, 4)])
def test_a_kernel_chosen_at_run_time(which, total):
    out = np.zeros(1, np.int32)
    assert call(library("geometry").run_pointer, out, which) == 0
    assert out[0] == total


def test_ten_million_threads_take_well_under_a_second():
    x = np.zeros(10_000_000, np.float32)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert call(library("geometry").run_trivial, x, len(x)) == 0
        times.append(time.perf_counter() - start)
    assert (x == 3).all()
    assert min(times) < 1


def test_device_attributes_are_those_of_an_h200():
    expected = {1: 1024, 4: 64, 5: 2**31 - 1, 6: 65535, 8: 49152, 10: 32, 16: 132, 39: 2048, 75: 9, 76: 0,
                81: 233472, 97: 232448, 106: 32}
    value = np.zeros(1, np.int32)
    for which, wanted in expected.items():
        assert call(library("geometry").attribute, value, which, 0) == 0
        assert value[0] == wanted
    assert call(library("geometry").attribute, value, 16, 1) == INVALID_DEVICE
    assert library("faults").set_device(0) == 0
    assert library("faults").set_device(1) == INVALID_DEVICE


@pytest.mark.parametrize("question", ["ask_registers", "ask_occupancy"])
def test_what_depends_on_registers_is_not_answered(question):
    geometry = library("geometry")
    geometry.name_of.restype = geometry.words_of.restype = ctypes.c_char_p
    assert getattr(geometry, question)() == NOT_SUPPORTED
    assert geometry.left_behind() == NOT_SUPPORTED and geometry.left_behind() == 0
    assert geometry.name_of(NOT_SUPPORTED) == b"cudaErrorNotSupported"
    words = geometry.words_of(NOT_SUPPORTED).decode()
    assert words.startswith("operation not supported: ") and "registers" in words and "ask on a GPU" in words


# ---- shared memory and barriers ----


@pytest.mark.parametrize("n", [1, 255, 256, 257, 100_003])
def test_reductions_in_shared_memory(n):
    x = np.random.default_rng(0).integers(-50, 50, n)
    for kind, name, threads in ((np.float32, "run_sum_static", 256), (np.float64, "run_sum_dynamic", 512)):
        blocks = -(-n // threads)
        out = np.zeros(blocks, kind)
        extra = [threads] if name == "run_sum_dynamic" else []
        assert call(getattr(library("shared"), name), x.astype(kind), out, n, *extra) == 0
        padded = np.pad(x, (0, blocks * threads - n)).reshape(blocks, threads)
        np.testing.assert_array_equal(out, padded.sum(axis=1))


@pytest.mark.parametrize("rows, columns", [(1, 1), (32, 32), (33, 95), (200, 70)])
def test_tiled_transpose(rows, columns):
    x = np.random.default_rng(0).random((rows, columns), np.float32)
    y = np.zeros((columns, rows), np.float32)
    assert call(library("shared").run_transpose, x, y, rows, columns) == 0
    np.testing.assert_array_equal(y, x.T)


def test_barriers_that_count():
    out = np.zeros((32, 5), np.int32)
    assert call(library("shared").run_votes, out, 64) == 0
    assert (out == [5, 1, 0, 1, 0]).all()


@pytest.mark.parametrize("threads", [1, 31, 1024])
def test_many_barriers(threads):
    out = np.zeros((9, threads), np.int32)
    assert call(library("shared").run_rotate, out, 9, threads, 40) == 0
    np.testing.assert_array_equal(out, np.tile((np.arange(threads) + 40) % threads, (9, 1)))


def test_shared_memory_does_not_begin_with_convenient_zeros():
    out = np.zeros((20, 2), np.float32)
    assert call(library("shared").run_unwritten, out, 20) == 0
    assert np.isnan(out).all()


# ---- warps ----


def shuffled(x, kind, argument, width):
    """What CUDA's reference says of one warp's values; None where it says nothing."""
    out = []
    for lane in range(len(x)):
        first = lane // width * width
        source = [first + argument % width, lane - argument, lane + argument, lane ^ argument][kind]
        if kind == 1 and source < first or kind in (2, 3) and source >= first + width:
            source = lane
        out.append(x[source] if source < len(x) else None)
    return out


@pytest.mark.parametrize("name, dtype", [("int", np.int32), ("unsigned", np.uint32), ("long", np.int64),
                                         ("float", np.float32), ("double", np.float64)])
@pytest.mark.parametrize("bx, by", [(32, 1), (16, 4), (40, 1)])
def test_shuffles(name, dtype, bx, by):
    x = (np.random.default_rng(0).random(bx * by) * 1e9).astype(dtype)
    for kind in range(4):
        for argument in (0, 1, 2, 7, 16, 31):
            for width in (32, 16, 8, 4, 2, 1):
                out = np.zeros_like(x)
                launch = getattr(library("warp"), f"shuffle_{name}")
                assert call(launch, x, out, kind, argument, width, bx, by) == 0
                warps = [x[first:first + 32] for first in range(0, len(x), 32)]
                expected = [value for warp in warps for value in shuffled(warp, kind, argument, width)]
                for got, want in zip(out, expected):
                    # A lane that does not exist gives all bits set.
                    assert got == want if want is not None else got.tobytes() == b"\xff" * got.itemsize


def test_warp_reductions():
    x = np.random.default_rng(0).integers(0, 100, 512).astype(np.float32)
    out = np.zeros((16, 4), np.float32)
    assert call(library("warp").run_warp_sums, x, out, 512) == 0
    np.testing.assert_array_equal(out, np.repeat(x.reshape(16, 32).sum(axis=1)[:, None], 4, axis=1))


@pytest.mark.parametrize("threads", [64, 56])
def test_masks_votes_and_matches(threads):
    out = np.zeros((threads, 8), np.uint32)
    assert call(library("warp").run_halves, out, threads) == 0
    for thread, row in enumerate(out):
        lane, present = thread % 32, min(32, threads - thread // 32 * 32)
        ones = [1 << i for i in range(present)]
        if present == 32 or lane < 16:
            assert row[0] == (sum(range(16)) if lane < 16 else sum(range(16, 32)))
        assert row[1] == sum(b for i, b in enumerate(ones) if i % 3 == 0)
        assert row[2] == 1
        assert row[3] == 0
        assert row[4] == sum(b for i, b in enumerate(ones) if i % 4 == lane % 4)
        assert row[5] == row[6] == 1
        assert row[7] == sum(ones)


def test_a_lane_that_has_exited_gives_nothing_useful():
    out = np.zeros(32, np.float32)
    assert call(library("warp").run_from_the_dead, out) == 0
    assert np.isnan(out[::2]).all()


def test_bit_counting():
    x = np.array([0, 1, 2, 0x80000000, 0xffffffff, 0x12345678, 40], np.uint32)
    out = np.zeros((len(x), 8), np.int32)
    assert call(library("warp").run_bits, x, out, len(x)) == 0
    for value, row in zip(map(int, x), out.view(np.uint32).tolist()):
        lowest = (value & -value).bit_length()
        assert row[:3] == [bin(value).count("1"), lowest, 32 - value.bit_length()]
        assert row[3] == int(f"{value:032b}"[::-1], 2)
        assert row[4:] == [row[0], lowest + 16 if value else 0, 64 - (value and (value << 16).bit_length()),
                           value * value >> 32]


# ---- atomics, memory, math ----


class Totals(ctypes.Structure):
    _fields_ = [*[(n, ctypes.c_int) for n in ("add", "sub", "min", "max", "and_", "or_", "xor_", "cas")],
                *[(n, ctypes.c_uint) for n in ("unsigned_add", "inc", "exchanged")],
                ("float_add", ctypes.c_float), ("long_add", ctypes.c_ulonglong),
                ("long_max", ctypes.c_ulonglong), ("double_add", ctypes.c_double)]


def test_atomics_across_blocks(monkeypatch):
    monkeypatch.setenv("LABKIT_HOST_THREADS", "8")
    blocks, threads = 200, 256
    n = blocks * threads
    totals, previous = Totals(and_=-1), np.zeros(n, np.int32)
    pointer = ctypes.c_void_p(previous.ctypes.data)
    assert library("atomics").run_atomics(ctypes.byref(totals), pointer, blocks, threads) == 0
    np.testing.assert_array_equal(np.sort(previous), np.arange(n))
    xor = int(np.bitwise_xor.reduce(np.arange(n)))
    got = [getattr(totals, name) for name, _ in Totals._fields_]
    assert got == [n, -2 * n, 1 - n, n - 1, -(2**31), 2**31 - 1, xor, 3 * n, 5 * n, n % 7, 9, n / 2, n << 33,
                   (n - 1) << 32, n / 4]


def test_the_last_block_sums():
    n = 40_000
    x, part, out = np.ones(n, np.float32), np.zeros(313, np.float32), np.zeros(1, np.float32)
    for _ in range(5):
        assert call(library("atomics").run_last_block, x, part, out, n) == 0
        assert out[0] == n


def test_vectors():
    x, u = np.arange(4000, dtype=np.float32), np.arange(4000, dtype=np.uint32)
    y, v = np.zeros_like(x), np.zeros_like(u)
    assert call(library("atomics").run_vectors, x, y, u, v, 1000) == 0
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(v.reshape(-1, 4), u.reshape(-1, 4)[:, ::-1])


def test_math():
    x = np.float32([*(np.random.default_rng(0).random(200) * 2 + 1e-3), 0.0005, np.inf])
    out = np.zeros((len(x), 8), np.float32)
    assert call(library("atomics").run_math, x, out, len(x)) == 0
    wide = x.astype(np.float64)
    fused = (wide * wide - 1).astype(np.float32)
    expected = [1 / np.sqrt(wide), 1 / wide, fused, np.clip(wide, 0, 1), np.clip(wide, 0.25, 0.75), -wide]
    for column, values in enumerate(expected):
        np.testing.assert_array_equal(out[:, column], values.astype(np.float32))
    in_range = wide * 1e3 < 2e9
    np.testing.assert_array_equal(out[in_range, 6], np.rint(x[in_range] * np.float32(1e3)))
    assert (out[x * 1e30 > 2**31, 7] == np.float32(2**31 - 1)).all()  # saturates, as on a GPU
