"""__half and __nv_bfloat16 of the host backend, bit for bit."""

import numpy as np
import pytest
import torch
from host_build import call, library

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
def test_every_small_float_to_float_and_back(name, dtype, digits):
    x = every_value(dtype)
    wide, back = torch.zeros(65536), torch.zeros(65536, dtype=dtype)
    assert call(getattr(library("small_floats"), f"{name}_widen"), x, wide, 65536) == 0
    same(wide, x.float())
    assert call(getattr(library("small_floats"), f"{name}_narrow"), wide, back, 65536) == 0
    same(back, x)
    assert (back[torch.isnan(x)].view(torch.int16) == 0x7fff).all()  # a GPU's NaN


@pytest.mark.parametrize("name, dtype, digits", TYPES)
def test_rounding(name, dtype, digits):
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (1_000_000,), generator=generator).to(torch.int32)
    anything = anything.view(torch.float32)
    values = every_value(dtype).float()
    values = values[torch.isfinite(values)].sort().values
    ties = ((values[1:].double() + values[:-1].double()) / 2).float()  # half way between neighbours
    edges = torch.tensor([65504.0, 65519.996, 65520.0, 2**-25, 2**-24, 1.5 * 2**-24, 3.4e38, torch.inf,
                          -torch.inf, torch.nan, 0.0, -0.0])
    x = torch.cat([anything, ties, torch.nextafter(ties, torch.tensor(torch.inf)),
                   torch.nextafter(ties, torch.tensor(-torch.inf)), edges])
    out = torch.zeros(len(x), dtype=dtype)
    assert call(getattr(library("small_floats"), f"{name}_narrow"), x, out, len(x)) == 0
    same(out, x.to(dtype))


@pytest.mark.parametrize("name, dtype, digits", TYPES)
def test_a_double_is_rounded_once(name, dtype, digits):
    tie = 1 + 2.0 ** -(digits + 1)
    x = torch.tensor([tie, tie + 2**-40, tie - 2**-40, -tie - 2**-40, 1e-320, 1e308], dtype=torch.float64)
    step = 2.0**-digits
    out = torch.zeros(6, dtype=dtype)
    assert call(getattr(library("small_floats"), f"{name}_narrow_double"), x, out, 6) == 0
    assert out.tolist() == [1, 1 + step, 1, -1 - step, 0, torch.inf]


@pytest.mark.parametrize("name, dtype, digits", TYPES)
def test_arithmetic_rounds_once(name, dtype, digits):
    generator = torch.Generator().manual_seed(0)
    n = 300_000
    a, b, c = torch.randint(0, 65536, (3, n), generator=generator).to(torch.uint16).view(dtype)
    near = -(a[:n // 2].float() * b[:n // 2].float()).to(dtype)  # so that a * b + c cancels
    c = torch.cat([near, c[n // 2:]])
    out = torch.zeros((n, 8), dtype=dtype)
    assert call(getattr(library("small_floats"), f"{name}_arithmetic"), a, b, c, out, n) == 0
    for column, wanted in enumerate([a + b, a - b, a * b, a / b]):
        same(out[:, column].contiguous(), wanted)
    x, y, z = a.double(), b.double(), c.double()
    with np.errstate(invalid="ignore"):
        total = (x * y).numpy().astype(np.longdouble) + z.numpy()  # 64 digits, where numpy has them
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


def test_pairs_shuffle_and_add_atomically():
    total, total_b = torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)
    out, raw = torch.zeros(4, 2), torch.zeros(4, dtype=torch.float16)
    assert call(library("small_floats").run_pairs, total, total_b, out, raw, 4) == 0
    assert total.tolist() == [4 * 32, 4 * 496] and total_b.tolist() == [128, 128]
    assert out.tolist() == [[32 * 2 + 496, 496 * 2 + 32]] * 4
    assert raw.tolist() == [496] * 4
