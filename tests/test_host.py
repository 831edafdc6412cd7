"""The host backend: CUDA C++ on the CPU gives what CUDA promises, or says that it cannot."""

import ctypes
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit import host, machine

KERNELS = Path(__file__).parent / "host_kernels"
NAMES = sorted(path.stem for path in KERNELS.glob("*.cu"))
INVALID_VALUE, INVALID_CONFIGURATION, INVALID_DEVICE, ASSERT, LAUNCH_FAILURE = 1, 9, 101, 710, 719


def compiler():
    return machine.find_cxx() or "c++"


def compile_text(text, folder, name="kernel.cu", flags=(), cxx=None):
    """Runs the C++ compiler over a transformed .cu text; returns (finished process, library)."""
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(host.transform(text, name), encoding="utf-8")
    command = [cxx or compiler(), *host.CXX_FLAGS, "-I", host.INCLUDE_DIR, "-I", KERNELS, "-fPIC", "-shared", *flags]
    return subprocess.run([*map(str, command), "-o", library, source], capture_output=True, text=True), library


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """`library(name)`: tests/host_kernels/NAME.cu, built once and loaded."""
    folder, loaded = tmp_path_factory.mktemp("host"), {}

    def load(name):
        if name not in loaded:
            path = KERNELS / f"{name}.cu"
            done, built = compile_text(path.read_text(encoding="utf-8"), folder, path.name)
            assert done.returncode == 0, done.stderr
            loaded[name] = ctypes.CDLL(str(built))
        return loaded[name]

    return load


def call(function, *arguments):
    """Calls a launcher; arrays and tensors go as pointers, floats are not needed."""
    converted = []
    for a in arguments:
        if isinstance(a, np.ndarray):
            assert a.flags.c_contiguous
            converted.append(ctypes.c_void_p(a.ctypes.data))
        elif isinstance(a, torch.Tensor):
            converted.append(ctypes.c_void_p(a.data_ptr()))
        else:
            converted.append(ctypes.c_size_t(a) if a is not None else None)
    return function(*converted)


# ---- indices, arguments, device ----


@pytest.mark.parametrize("grid, block", [((1, 1, 1), (1, 1, 1)), ((3, 2, 4), (5, 3, 2)), ((70, 1, 3), (64, 2, 1)),
                                         ((1, 300, 1), (1, 1, 64)), ((2, 1, 1), (1024, 1, 1))])
def test_indices(library, grid, block):
    threads = np.prod(block)
    out = np.zeros((np.prod(grid) * threads, 12), np.uint32)
    assert call(library("geometry").run_indices, out, *grid, *block) == 0
    bz, by, bx, tz, ty, tx = np.indices((*grid[::-1], *block[::-1])).reshape(6, -1)
    expected = np.stack([tx, ty, tz, bx, by, bz], axis=1)
    np.testing.assert_array_equal(out[:, :6], expected)
    np.testing.assert_array_equal(out[:, 6:], np.tile([*block, *grid], (len(out), 1)))


def test_unsigned_products_wrap(library):
    out = np.zeros(2, np.int64)
    assert call(library("geometry").run_wrapped, out, 1 << 22 | 1) == 0
    assert out.tolist() == [1024, (1 << 32) + 1024]


def test_arguments_are_converted_once_and_copied_for_each_thread(library):
    out, counter = np.zeros(5, np.float32), np.array([41], np.int32)
    assert call(library("geometry").run_arguments, out, counter, 64) == 0
    assert counter[0] == 42
    assert out.tolist() == [3.0, 1.0, 42.0 + 63, 10.5, 40.0]


@pytest.mark.parametrize("which, total", [(0, 2), (1, 4)])
def test_a_kernel_chosen_at_run_time(library, which, total):
    out = np.zeros(1, np.int32)
    assert call(library("geometry").run_pointer, out, which) == 0
    assert out[0] == total


def test_ten_million_threads_take_well_under_a_second(library):
    x = np.zeros(10_000_000, np.float32)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert call(library("geometry").run_trivial, x, len(x)) == 0
        times.append(time.perf_counter() - start)
    assert (x == 3).all()
    assert min(times) < 1


def test_device_attributes_are_those_of_an_h200(library):
    expected = {1: 1024, 4: 64, 5: 2**31 - 1, 6: 65535, 8: 49152, 10: 32, 16: 132, 39: 2048, 75: 9, 76: 0, 81: 233472,
                97: 232448, 106: 32}
    value = np.zeros(1, np.int32)
    for which, wanted in expected.items():
        assert call(library("geometry").attribute, value, which, 0) == 0
        assert value[0] == wanted
    assert call(library("geometry").attribute, value, 16, 1) == INVALID_DEVICE
    assert library("faults").set_device(0) == 0
    assert library("faults").set_device(1) == INVALID_DEVICE


# ---- shared memory and barriers ----


@pytest.mark.parametrize("n", [1, 255, 256, 257, 100_003])
def test_reductions_in_shared_memory(library, n):
    x = np.random.default_rng(0).integers(-50, 50, n)
    for kind, name, threads in ((np.float32, "run_sum_static", 256), (np.float64, "run_sum_dynamic", 512)):
        blocks = -(-n // threads)
        out = np.zeros(blocks, kind)
        extra = [threads] if name == "run_sum_dynamic" else []
        assert call(getattr(library("shared"), name), x.astype(kind), out, n, *extra) == 0
        padded = np.pad(x, (0, blocks * threads - n)).reshape(blocks, threads)
        np.testing.assert_array_equal(out, padded.sum(axis=1))


@pytest.mark.parametrize("rows, columns", [(1, 1), (32, 32), (33, 95), (200, 70)])
def test_tiled_transpose(library, rows, columns):
    x = np.random.default_rng(0).random((rows, columns), np.float32)
    y = np.zeros((columns, rows), np.float32)
    assert call(library("shared").run_transpose, x, y, rows, columns) == 0
    np.testing.assert_array_equal(y, x.T)


def test_barriers_that_count(library):
    out = np.zeros((32, 5), np.int32)
    assert call(library("shared").run_votes, out, 64) == 0
    assert (out == [5, 1, 0, 1, 0]).all()


@pytest.mark.parametrize("threads", [1, 31, 1024])
def test_many_barriers(library, threads):
    out = np.zeros((9, threads), np.int32)
    assert call(library("shared").run_rotate, out, 9, threads, 40) == 0
    np.testing.assert_array_equal(out, np.tile((np.arange(threads) + 40) % threads, (9, 1)))


def test_shared_memory_does_not_begin_with_convenient_zeros(library):
    out = np.zeros((20, 2), np.float32)
    assert call(library("shared").run_unwritten, out, 20) == 0
    assert np.isnan(out).all()


# ---- warps ----


def shuffled(x, kind, argument, width):
    """What CUDA's reference says of one warp's values; None where it says nothing."""
    out = []
    for lane in range(len(x)):
        first = lane // width * width
        source = {0: first + argument % width, 1: lane - argument, 2: lane + argument, 3: lane ^ argument}[kind]
        if kind == 1 and source < first or kind in (2, 3) and source >= first + width:
            source = lane
        out.append(x[source] if source < len(x) else None)
    return out


@pytest.mark.parametrize("name, dtype", [("int", np.int32), ("unsigned", np.uint32), ("long", np.int64),
                                         ("float", np.float32), ("double", np.float64)])
@pytest.mark.parametrize("bx, by", [(32, 1), (16, 4), (40, 1)])
def test_shuffles(library, name, dtype, bx, by):
    x = (np.random.default_rng(0).random(bx * by) * 1e9).astype(dtype)
    for kind in range(4):
        for argument in (0, 1, 2, 7, 16, 31):
            for width in (32, 16, 8, 4, 2, 1):
                out = np.zeros_like(x)
                assert call(getattr(library("warp"), f"shuffle_{name}"), x, out, kind, argument, width, bx, by) == 0
                expected = [v for w in range(0, len(x), 32) for v in shuffled(x[w:w + 32], kind, argument, width)]
                for got, want in zip(out, expected):
                    # A lane that does not exist gives all bits set.
                    assert got == want if want is not None else got.tobytes() == b"\xff" * got.itemsize


def test_warp_reductions(library):
    x = np.random.default_rng(0).integers(0, 100, 512).astype(np.float32)
    out = np.zeros((16, 4), np.float32)
    assert call(library("warp").run_warp_sums, x, out, 512) == 0
    np.testing.assert_array_equal(out, np.repeat(x.reshape(16, 32).sum(axis=1)[:, None], 4, axis=1))


@pytest.mark.parametrize("threads", [64, 56])
def test_masks_votes_and_matches(library, threads):
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


def test_a_lane_that_has_exited_gives_nothing_useful(library):
    out = np.zeros(32, np.float32)
    assert call(library("warp").run_from_the_dead, out) == 0
    assert np.isnan(out[::2]).all()


def test_bit_counting(library):
    x = np.array([0, 1, 2, 0x80000000, 0xffffffff, 0x12345678, 40], np.uint32)
    out = np.zeros((len(x), 8), np.int32)
    assert call(library("warp").run_bits, x, out, len(x)) == 0
    for value, row in zip(map(int, x), out.view(np.uint32).tolist()):
        lowest = (value & -value).bit_length()
        assert row[:3] == [bin(value).count("1"), lowest, 32 - value.bit_length()]
        assert row[3] == int(f"{value:032b}"[::-1], 2)
        assert row[4:] == [row[0], lowest + 16 if value else 0, 64 - (value << 16).bit_length() if value else 64,
                           value * value >> 32]


# ---- atomics, memory, math ----


class Totals(ctypes.Structure):
    _fields_ = [*[(n, ctypes.c_int) for n in ("add", "sub", "min", "max", "and_", "or_", "xor_", "cas")],
                *[(n, ctypes.c_uint) for n in ("unsigned_add", "inc", "exchanged")], ("float_add", ctypes.c_float),
                ("long_add", ctypes.c_ulonglong), ("long_max", ctypes.c_ulonglong), ("double_add", ctypes.c_double)]


def test_atomics_across_blocks(library, monkeypatch):
    monkeypatch.setenv("LABKIT_HOST_THREADS", "8")
    blocks, threads = 200, 256
    n = blocks * threads
    totals, previous = Totals(and_=-1), np.zeros(n, np.int32)
    assert library("atomics").run_atomics(ctypes.byref(totals), ctypes.c_void_p(previous.ctypes.data), blocks, threads) == 0
    np.testing.assert_array_equal(np.sort(previous), np.arange(n))
    xor = int(np.bitwise_xor.reduce(np.arange(n)))
    got = [getattr(totals, name) for name, _ in Totals._fields_]
    assert got == [n, -2 * n, 1 - n, n - 1, -(2**31), 2**31 - 1, xor, 3 * n, 5 * n, n % 7, 9, n / 2, n << 33,
                   (n - 1) << 32, n / 4]


def test_the_last_block_sums(library):
    n = 40_000
    x, part, out = np.ones(n, np.float32), np.zeros(313, np.float32), np.zeros(1, np.float32)
    for _ in range(5):
        assert call(library("atomics").run_last_block, x, part, out, n) == 0
        assert out[0] == n


def test_vectors(library):
    x, u = np.arange(4000, dtype=np.float32), np.arange(4000, dtype=np.uint32)
    y, v = np.zeros_like(x), np.zeros_like(u)
    assert call(library("atomics").run_vectors, x, y, u, v, 1000) == 0
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(v.reshape(-1, 4), u.reshape(-1, 4)[:, ::-1])


def test_math(library):
    x = np.concatenate([np.random.default_rng(0).random(200, np.float32) * 2 + 1e-3, np.float32([0.0005, np.inf])])
    x = x.astype(np.float32)
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


# ---- launches that fail ----


@pytest.mark.parametrize("grid, block, shared, error", [
    ((1, 1, 1), (1024, 1, 1), 0, 0), ((1, 1, 1), (16, 1, 64), 48 * 1024, 0), ((1, 65535, 1), (1, 1, 1), 0, 0),
    ((0, 1, 1), (1, 1, 1), 0, INVALID_CONFIGURATION), ((1, 0, 1), (1, 1, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 0), (1, 1, 1), 0, INVALID_CONFIGURATION), ((2**31, 1, 1), (1, 1, 1), 0, INVALID_CONFIGURATION),
    ((1, 65536, 1), (1, 1, 1), 0, INVALID_CONFIGURATION), ((1, 1, 65536), (1, 1, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (0, 1, 1), 0, INVALID_CONFIGURATION), ((1, 1, 1), (1, 1, 0), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (1025, 1, 1), 0, INVALID_CONFIGURATION), ((1, 1, 1), (32, 33, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (1, 1, 65), 0, INVALID_CONFIGURATION), ((1, 1, 1), (65536, 65536, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (1, 1, 1), 48 * 1024 + 1, INVALID_VALUE),
])
def test_launch_limits(library, grid, block, shared, error):
    faults, out = library("faults"), np.zeros(1, np.int32)
    assert call(faults.run_nothing, out, *grid, *block, shared) == error
    assert out[0] == (0 if error else np.prod(grid))
    assert words(library, INVALID_CONFIGURATION) == "invalid configuration argument"
    assert words(library, INVALID_VALUE) == "invalid argument"


def words(library, error):
    faults = library("faults")
    faults.words.restype = ctypes.c_char_p
    return faults.words(error).decode()


def test_launch_bounds(library):
    out = np.zeros(1, np.int32)
    assert call(library("faults").run_bounded, out, 128) == 0
    assert call(library("faults").run_bounded, out, 129) == INVALID_VALUE
    assert out[0] == 1


def test_more_than_48_kib_of_shared_memory_has_to_be_asked_for(library):
    faults, out = library("faults"), np.zeros(1, np.int32)
    assert call(faults.run_with_memory, out, 0, 49153) == INVALID_VALUE
    assert call(faults.run_with_memory, out, 232449, 0) == INVALID_VALUE
    assert call(faults.run_with_memory, out, 100_000, 100_001) == INVALID_VALUE
    assert out[0] == 0
    assert call(faults.run_with_memory, out, 100_000, 100_000) == 0
    assert call(faults.run_with_memory, out, 232448, 232448) == 0
    assert out[0] == 1
    assert call(faults.run_with_both_memories, out, 45056) == 0
    assert call(faults.run_with_both_memories, out, 45060) == INVALID_VALUE  # 4 KiB of the 48 are taken


def test_errors_stay_until_they_are_asked_for(library):
    again = np.zeros(1, np.int32)
    assert call(library("faults").peek_after_fault, again) == INVALID_CONFIGURATION
    assert again[0] == INVALID_CONFIGURATION


def line(mark):
    """The number of the line of faults.cu that ends in `// @mark`."""
    lines = (KERNELS / "faults.cu").read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"// @{mark}")]
    return f"faults.cu:{number}"


def failure(library, function, *arguments):
    assert call(function, *arguments) == LAUNCH_FAILURE
    text = words(library, LAUNCH_FAILURE)
    assert text.startswith("unspecified launch failure: kernel ")
    return text


def test_two_barriers_are_told_apart(library):
    out, faults = np.zeros(1, np.int32), library("faults")
    text = failure(library, faults.run_two_barriers, out, 64)
    assert "thread (0,0,0) of block" in text and "thread (32,0,0) of block" in text
    assert line("first") in text and line("second") in text and "kernel two_barriers" in text
    assert out[0] == 0
    assert call(faults.run_two_barriers, out, 32) == 0  # all at the first one: and the failure is over
    assert out[0] == 1


def test_a_thread_that_has_returned_is_not_waited_for(library):
    out = np.zeros(2, np.int32)
    assert call(library("faults").run_early_return, out, 256, 100) == 0
    assert out.tolist() == [100, 100]


def test_a_lane_that_never_comes(library):
    out = np.zeros(64, np.int32)
    text = failure(library, library("faults").run_missing_lane, out)
    assert f"waits in __shfl_xor_sync at {line('shuffle')} for lane 5" in text
    assert f"it waits in __syncthreads at {line('elsewhere')}" in text


def test_masks_and_operations_that_do_not_match(library):
    out = np.zeros(32, np.int32)
    text = failure(library, library("faults").run_two_masks, out)
    assert f"__any_sync at {line('masks')} for lane 4" in text
    assert f"__syncthreads at {line('after')}" in text
    text = failure(library, library("faults").run_two_operations, out)
    assert f"__any_sync at {line('any')} for lane 16" in text
    assert f"__all_sync at {line('all')} with mask 0xffffffff" in text
    assert f"{line('mask')} with mask 0xffff0000, which leaves out its own lane 0" in failure(
        library, library("faults").run_not_in_mask, out)
    assert "with width 12; it must be 1, 2, 4, 8, 16 or 32" in failure(library, library("faults").run_odd_width, out)


def test_assert_ends_the_launch_and_not_the_process(library):
    assert library("faults").run_asserts(64, 64) == 0
    assert library("faults").run_asserts(64, 63) == ASSERT
    text = words(library, ASSERT)
    assert text.startswith("device-side assert triggered: kernel asserts: thread (63,0,0) of block")
    assert "`threadIdx.x < n`" in text and line("assert") in text


def test_writes_beyond_dynamic_shared_memory(library):
    faults = library("faults")
    assert call(faults.run_beyond, 8, 32) == 0
    assert "to which the launch gave 32 bytes" in failure(library, faults.run_beyond, 9, 32)
    assert "to which the launch gave 0 bytes" in failure(library, faults.run_beyond, 1, 0)


def test_stacks(library):
    faults, out = library("faults"), np.zeros(1, np.int32)
    assert call(faults.run_big_frame, out) == 0
    assert call(faults.run_recursion, out, 50) == 0
    # A frame is some 300 bytes here, the watched band at the stack's end 1 KiB: one of these depths ends in it.
    depth = next(d for d in range(200, 600, 2) if call(faults.run_recursion, out, d) != 0)
    assert "more local variables than the host backend's 128 KiB" in failure(library, faults.run_recursion, out, depth)


# ---- half and bfloat16 ----

TYPES = [("half", torch.float16, 10), ("bfloat16", torch.bfloat16, 7)]


def same(got, wanted):
    """Equal bit for bit, where any NaN equals any NaN."""
    nan = torch.isnan(wanted.float())
    assert torch.equal(torch.isnan(got.float()), nan)
    integer = {2: torch.int16, 4: torch.int32}[got.element_size()]
    assert torch.equal(got.view(integer)[~nan], wanted.view(integer)[~nan])


def every_value(dtype):
    return torch.arange(65536).to(torch.int32).to(torch.uint16).view(dtype)


@pytest.mark.parametrize("name, dtype, digits", TYPES)
def test_every_small_float_to_float_and_back(library, name, dtype, digits):
    x = every_value(dtype)
    wide, back = torch.zeros(65536), torch.zeros(65536, dtype=dtype)
    assert call(getattr(library("small_floats"), f"{name}_widen"), x, wide, 65536) == 0
    same(wide, x.float())
    assert call(getattr(library("small_floats"), f"{name}_narrow"), wide, back, 65536) == 0
    same(back, x)
    assert (back[torch.isnan(x)].view(torch.int16) == 0x7fff).all()  # a GPU's NaN


@pytest.mark.parametrize("name, dtype, digits", TYPES)
def test_rounding(library, name, dtype, digits):
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (1_000_000,), generator=generator).to(torch.int32).view(torch.float32)
    values = every_value(dtype).float()
    values = values[torch.isfinite(values)].sort().values
    ties = ((values[1:].double() + values[:-1].double()) / 2).float()  # half way between neighbours
    edges = torch.tensor([65504.0, 65519.996, 65520.0, 2**-25, 2**-24, 1.5 * 2**-24, 3.4e38, torch.inf, -torch.inf,
                          torch.nan, 0.0, -0.0])
    x = torch.cat([anything, ties, torch.nextafter(ties, torch.tensor(torch.inf)),
                   torch.nextafter(ties, torch.tensor(-torch.inf)), edges])
    out = torch.zeros(len(x), dtype=dtype)
    assert call(getattr(library("small_floats"), f"{name}_narrow"), x, out, len(x)) == 0
    same(out, x.to(dtype))


@pytest.mark.parametrize("name, dtype, digits", TYPES)
def test_a_double_is_rounded_once(library, name, dtype, digits):
    tie = 1 + 2.0 ** -(digits + 1)
    x = torch.tensor([tie, tie + 2**-40, tie - 2**-40, -tie - 2**-40, 1e-320, 1e308], dtype=torch.float64)
    step = 2.0**-digits
    out = torch.zeros(6, dtype=dtype)
    assert call(getattr(library("small_floats"), f"{name}_narrow_double"), x, out, 6) == 0
    assert out.tolist() == [1, 1 + step, 1, -1 - step, 0, torch.inf]


@pytest.mark.parametrize("name, dtype, digits", TYPES)
def test_arithmetic_rounds_once(library, name, dtype, digits):
    generator = torch.Generator().manual_seed(0)
    n = 300_000
    a, b, c = (torch.randint(0, 65536, (n,), generator=generator).to(torch.uint16).view(dtype) for _ in range(3))
    near = -(a[:n // 2].float() * b[:n // 2].float()).to(dtype)  # so that a * b + c cancels
    c = torch.cat([near, c[n // 2:]])
    out = torch.zeros((n, 8), dtype=dtype)
    assert call(getattr(library("small_floats"), f"{name}_arithmetic"), a, b, c, out, n) == 0
    for column, wanted in enumerate([a + b, a - b, a * b, a / b]):
        same(out[:, column].contiguous(), wanted)
    x, y, z = a.double(), b.double(), c.double()
    with np.errstate(invalid="ignore"):
        total = (x * y).numpy().astype(np.longdouble) + z.numpy()  # more digits than a double, where numpy has them
    got = out[:, 4].double().numpy()
    finite = np.isfinite(total) & np.isfinite(got)
    # Each result is at most half a step away from the exact value, and no neighbour is nearer.
    bits = out[:, 4].contiguous().view(torch.int16)
    for step in (1, -1):
        neighbour = (bits + step).view(dtype).double().numpy()
        ok = finite & np.isfinite(neighbour)
        assert (np.abs(got[ok] - total[ok]) <= np.abs(neighbour[ok] - total[ok])).all()
    for column, wanted in ((5, torch.maximum(a, b)), (6, torch.minimum(a, b))):  # a number beats NaN
        wanted = torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, wanted))
        same(out[:, column].contiguous(), torch.where(a == b, out[:, column], wanted))
    same(out[:, 7].contiguous(), -a)


def test_pairs_shuffle_and_add_atomically(library):
    total, total_b = torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)
    out, raw = torch.zeros(4, 2), torch.zeros(4, dtype=torch.float16)
    assert call(library("small_floats").run_pairs, total, total_b, out, raw, 4) == 0
    assert total.tolist() == [4 * 32, 4 * 496] and total_b.tolist() == [128, 128]
    assert out.tolist() == [[32 * 2 + 496, 496 * 2 + 32]] * 4
    assert raw.tolist() == [496] * 4


# ---- what is refused ----

REFUSED = {
    "asm": '__global__ void k(float* x) {\n    asm("tanh.approx.f32 %0, %0;" : "+f"(*x));\n}',
    "asm ": '__device__ void f() {\n    __asm__ volatile("bar.sync 0;");\n}',
    "__managed__": "\n__managed__ int x;",
    "__cluster_dims__": "\n__global__ void __cluster_dims__(2, 1, 1) k() {}",
    "cudaMalloc": "void f(void** p) {\n    cudaMalloc(p, 4);\n}",
    "cudaFree": "void f(void* p) {\n    cudaFree(p);\n}",
    "cudaMemcpy": "void f(int* p) {\n    cudaMemcpy(p, p + 1, 4, cudaMemcpyDeviceToHost);\n}",
    "cudaMemcpyToSymbol": "__constant__ int t = 3;\nvoid f(int v) { cudaMemcpyToSymbol(t, &v, 4); }",
    "__constant__": "\n__constant__ float table[16];",
    "cudaStreamCreate": "void f(cudaStream_t s) {\n    cudaStreamCreate(&s);\n}",
    "cudaEventRecord": "template <class E> void f(E e) {\n    cudaEventRecord(e);\n}",
    "cudaLaunchKernel": "void f(void* k) {\n    cudaLaunchKernel(k, 1, 1, nullptr, 0, nullptr);\n}",
    "cudaLaunchCooperativeKernel": "void f(void* k) {\n    cudaLaunchCooperativeKernel(k, 1, 1, nullptr);\n}",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor":
        "void f(int* n, void* k) {\n    cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, k, 32, 0);\n}",
    "cudaFuncGetAttributes": "void f(void* a, void* k) {\n    cudaFuncGetAttributes(a, k);\n}",
    "cudaGetDeviceProperties": "template <class P> void f(P p) {\n    cudaGetDeviceProperties(&p, 0);\n}",
    "cudaTextureObject_t": "\n__global__ void k(cudaTextureObject_t t) {}",
    "tex2D": "template <class T> __device__ float f(T t) {\n    return tex2D<float>(t, 0, 0);\n}",
    "__nanosleep": "__device__ void f() {\n    __nanosleep(10);\n}",
    "clock64": "__device__ long long f() {\n    return clock64();\n}",
    "__trap": "__device__ void f() {\n    __trap();\n}",
    "__shfl_down": "__device__ float f(float x) {\n    return __shfl_down(x, 1);\n}",
    "__ballot": "__device__ int f(int x) {\n    return __ballot(x);\n}",
    "__fadd_rz": "__device__ float f(float x) {\n    return __fadd_rz(x, x);\n}",
    "__dp4a": "__device__ int f(int x) {\n    return __dp4a(x, x, 0);\n}",
    "cudaFuncSetAttribute": "__global__ void k() {}\nint f() { return cudaFuncSetAttribute((const void*)k, "
                            "cudaFuncAttributeMaxDynamicSharedMemorySize, 1); }",
    "cooperative_groups.h": "\n#include <cooperative_groups.h>",
    "mma.h": "\n#include <mma.h>",
    "cuda/barrier": "\n#include <cuda/barrier>",
    "cub/cub.cuh": "\n#include <cub/cub.cuh>",
    "curand_kernel.h": "\n#include <curand_kernel.h>",
    "__global__": '#include "kernel_in_header.h"\n',
    "__shared__": '#include "shared_in_header.h"\n',
}
COMPILERS = [cxx for cxx in ("g++", "clang++") if shutil.which(cxx)]


@pytest.mark.parametrize("cxx", COMPILERS)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_and_line(tmp_path, name, cxx):
    (tmp_path / "kernel_in_header.h").write_text("#pragma once\n__global__ void k() {}\n")
    (tmp_path / "shared_in_header.h").write_text(
        "#pragma once\ninline float f() {\n    extern __shared__ float x[];\n    return x[0];\n}\n")
    done, _ = compile_text(REFUSED[name], tmp_path, flags=["-fsyntax-only", "-I", tmp_path], cxx=cxx)
    assert done.returncode != 0
    place = {"__global__": "kernel_in_header.h:2", "__shared__": "shared_in_header.h:3"}.get(name, "kernel.cu:2")
    explained = host.explain(done.stderr)
    said = [text for text in explained.splitlines() if f"{place}: " in text and "host backend" in text]
    assert said, explained
    words = {"cooperative_groups.h": "no cooperative groups", "mma.h": "no tensor cores",
             "cuda/barrier": "no <cuda/barrier>"}.get(name, f"`{name.strip()}` is not supported by the host backend: ")
    assert any(words in text for text in said), explained


@pytest.mark.parametrize("text, line, words", [
    ("__global__ void a() {}\n__global__ void b() {\n    a<<<1, 1>>>();\n}", 3, "no dynamic parallelism"),
    ("extern __shared__ float s[];\n__global__ void k() { s[0] = 1; }", 1, "declare it inside the kernel"),
    ("\n__shared__ float s[4];\n__global__ void k() { s[0] = 1; }", 2, "declare it inside the kernel"),
    ("__global__ void k() {\n    __shared__ int n = 0;\n}", 2, "has an initializer"),
    ("__global__ void k() {\n\n    __shared__ int n[2]{};\n}", 3, "has an initializer"),
    ("__global__ void k() {\n    extern __shared__ int n;\n}", 2, "T name[]"),
    ("#define KERNEL __global__ void\nKERNEL k() {}", 1, "in full"),
    ("#define TILE __shared__ float t[32]\n__global__ void k() { TILE; }", 1, "in the same macro"),
    ("void f() {\n    k<<<1, 2;\n}", 2, "without `>>>(`"),
    ("__global__ void k() {\n", 1, "never closed"),
])
def test_refused_by_transform(text, line, words):
    with pytest.raises(host.HostBackendError) as refused:
        host.transform(text, "kernel.cu")
    assert str(refused.value).startswith(f"kernel.cu:{line}: ")
    assert words in str(refused.value)


def test_other_errors_come_back_unchanged(tmp_path):
    done, _ = compile_text("\nint f() { return undeclared; }", tmp_path, flags=["-fsyntax-only"])
    assert "kernel.cu:2:" in done.stderr
    assert host.explain(done.stderr) == done.stderr


# ---- the transform ----


def changed(text):
    out = host.transform(text, "a.cu")
    head = '#include "cuda_host.h"\n#line 1 "a.cu"\n'
    assert out.startswith(head)
    assert out.count("\n") == text.count("\n") + 2
    return out[len(head):]


@pytest.mark.parametrize("text", [
    "int x = a << b;", "auto y = a << (b >> 3);", "// k<<<1, 2>>>(x)", "/* k<<<1, 2>>>(x) __global__ */ int x;",
    'const char* s = "k<<<1, 2>>>(x) // ";', 'auto s = R"x(k<<<1, 2>>>(x) " __shared__ )y" )x";', "char c = '\"';",
    "Foo<Bar<Baz<int>>> z;", "int n = 1'000'000; // it's", "ostream& operator<<<T>(ostream&, T);",
    "#ifdef __CUDACC__\nk<<<1, 2>>>(x);\n__global__ void k() {\n#endif", "#if 0\n__shared__ int x = 0;\n#endif",
    "#ifndef __CUDA_ARCH__\nint x;\n#else\nasm(k<<<1);\n#endif", "#error don't <<< here",
    "#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800)\n__asm__(1);\n#endif", "#include <a<<<b>",
    "__attribute__((__noinline__)) void f();", "template <int N> __device__ int f() { return N >> 1 << 2; }",
])
def test_left_alone(text):
    assert changed(text) == text


@pytest.mark.parametrize("text, wanted", [
    ("k<<<g, b>>>(x, y);", "(::cuda_host::configure(g, b), k(x, y));"),
    ("k <<< g, b, 0, s >>> (x);", "(::cuda_host::configure(g, b, 0, s), k  (x));"),
    ("k<Mode, Foo<T, 3>><<<f(a, b), dim3{1, 2}>>>();", "(::cuda_host::configure(f(a, b), dim3{1, 2}), k<Mode, Foo<T, 3>>());"),
    ("if (a < b) ns::k<(1 > 0)><<<1, n<3>>>>(x);", "if (a < b) (::cuda_host::configure(1, n<3>), ns::k<(1 > 0)>(x));"),
    ("else ::k<<<1, 2>>>(f(g(\")\")));", "else (::cuda_host::configure(1, 2), ::k(f(g(\")\"))));"),
    ("table[i]<<<1, 2>>>(x);", "(::cuda_host::configure(1, 2), table[i](x));"),
    ("return (p ? a : b)<<<1, 2>>>(x);", "return (::cuda_host::configure(1, 2), (p ? a : b)(x));"),
    ("F::template k<T><<<1, 2>>>(x);", "(::cuda_host::configure(1, 2), F::template k<T>(x));"),
    ("k<<<a, // grid >>>(\n  b /* c, */>>>(\n x);", "(::cuda_host::configure(a,    b), k\n(\n x));"),
    ("#define RUN(T) \\\n  k<T><<<g, \\\n b>>>(x)\nint y;",
     "#define RUN(T) \\\n  (::cuda_host::configure(g,   b), k<T>\\\n(x))\nint y;"),
])
def test_launches(text, wanted):
    def squeeze(s):
        return [" ".join(part.split()) for part in s.replace("\\\n", "\n").split("\n")]
    assert squeeze(changed(text)) == squeeze(wanted)


@pytest.mark.parametrize("text, wanted", [
    ("extern __shared__ float s[];", "float * const s = (float*)::cuda_host::dynamic_shared();"),
    ("extern __shared__ __align__(16) unsigned char s[];",
     "unsigned char * const s = (unsigned char*)::cuda_host::dynamic_shared();"),
    ("extern __align__(16) __shared__ T s[][4];", "T (*const s)[4] = (T (*)[4])::cuda_host::dynamic_shared();"),
    ("extern\n__shared__ int s[];", "int * const s = (int*)::cuda_host::dynamic_shared();\n"),
    ("__shared__ float a[2][3], b;",
     "__shared__ float a[2][3], b; ::cuda_host::announce(a); ::cuda_host::announce(b);"),
    ("static __shared__ Foo<A, B> c[4];", "       __shared__ Foo<A, B> c[4]; ::cuda_host::announce(c);"),
    ("__shared__ struct { int x; } d;", "__shared__ struct { int x; } d; ::cuda_host::announce(d);"),
])
def test_shared_declarations(text, wanted):
    body = changed("void f() { " + text + " }")
    assert "".join(body.split(" ")) == "".join(("void f() { " + wanted + " }").split(" "))


def test_lines_of_compiler_errors_are_those_of_the_file(tmp_path):
    text = """
template <class T>
__global__ void k(T* x,
                  int n)
{
    extern __shared__
        T s[];
    __shared__ T t[4];
    x[0] = s[0] + t[0] + WRONG_A;
}
void f(float* x) {
    k<float>
        <<<1,
           // threads
           32, 16
        >>>(x,
            3);
    WRONG_B;
}
"""
    done, _ = compile_text(text, tmp_path, flags=["-fsyntax-only"])
    for name in ("WRONG_A", "WRONG_B"):
        number = next(i for i, source in enumerate(text.splitlines(), 1) if name in source)
        assert any(row.startswith(f"kernel.cu:{number}:") and name in row for row in done.stderr.splitlines())


def test_two_builds_of_an_edited_file_share_nothing(tmp_path):
    text = """
#include "export.h"
template <class T> __global__ void k(int* out) {
    __shared__ T big[SIZE];
    static_assert(sizeof(big) == SIZE * sizeof(T));
    big[SIZE - 1] = SIZE;
    *out = big[SIZE - 1];
}
EXPORT int run(int* out) { k<int><<<1, 1>>>(out); return cudaGetLastError(); }
"""
    out = np.zeros(1, np.int32)
    for size in (4, 10_000):
        done, built = compile_text(text, tmp_path, f"size{size}.cu", flags=[f"-DSIZE={size}"])
        assert done.returncode == 0, done.stderr
        assert call(ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL).run, out) == 0
        assert out[0] == size


def test_an_editor_waits_half_a_second_for_the_headers(tmp_path):
    text = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done, _ = compile_text(text, tmp_path, flags=["-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
        times.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    assert min(times) < 1.5  # 0.4 s, with room for a busy machine


@pytest.mark.skipif("clang++" not in COMPILERS, reason="needs clang++")
@pytest.mark.parametrize("name", NAMES)
def test_clang_takes_it_too(tmp_path, name):
    text = (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    done, _ = compile_text(text, tmp_path, f"{name}.cu", flags=["-fsyntax-only"], cxx="clang++")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(machine.find_nvcc() is None, reason="needs nvcc")
def test_the_kernels_are_cuda(tmp_path):
    done = subprocess.run([str(machine.find_nvcc()), "-std=c++20", "-arch=sm_90", "--threads", "2", "-c",
                           *[str(KERNELS / f"{name}.cu") for name in NAMES]],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
