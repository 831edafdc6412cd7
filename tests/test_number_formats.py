"""`labkit.formats` against every bit pattern of the small formats, and against torch for float32."""

import math

import pytest
import torch

import labkit
from labkit.number_formats import FORMATS


def every_positive(name):
    """The positive finite numbers of a format in rising order, float64, out of its bit patterns as torch reads them."""
    if name == "tf32":  # float32 numbers whose last 13 bits are 0
        values = (torch.arange(1 << 18, dtype=torch.int32) << 13).view(torch.float32)
    elif name.startswith("float8"):
        values = torch.arange(1 << 7, dtype=torch.uint8).view(getattr(torch, name))
    else:
        values = torch.arange(1 << 15, dtype=torch.int16).view(getattr(torch, name))
    values = values.double()
    return values[values.isfinite() & (values > 0)].sort().values


SMALL = [name for name in FORMATS if name != "float32"]


@pytest.fixture
def rows(session):
    return {row["format"]: row for row in labkit.formats("formats")}


@pytest.mark.parametrize("name", SMALL)
def test_the_table_says_what_the_bit_patterns_hold(rows, name):
    values, row = every_positive(name), rows[name]
    steps = values.diff()
    assert row["largest"] == values[-1].item() and row["least denormal"] == values[0].item()
    assert row["ULP at 1"] == (values[values > 1][0] - 1).item()
    # Denormal numbers lie as far apart as the least of them is from 0, and so do the normal ones of the first binade.
    wider = values[:-1][steps > values[0]][0].item()
    assert row["least normal"] == wider / 2
    assert row["decimal digits"] == pytest.approx(math.log10(2 / row["ULP at 1"]), abs=0.05)


def test_float32_is_as_torch_says(rows):
    info, row = torch.finfo(torch.float32), rows["float32"]
    assert (row["largest"], row["least normal"], row["ULP at 1"]) == (info.max, info.tiny, info.eps)
    assert row["least denormal"] == torch.nextafter(torch.tensor(0.0), torch.tensor(1.0)).item()
    assert row["sign"] + row["exponent"] + row["fraction"] == 32


@pytest.mark.parametrize("name", SMALL)
def test_the_curve_is_the_distance_between_neighbours_and_has_gaps_where_the_format_has_no_numbers(session, rows, name):
    curve = session().tables["formats_spacing"]
    values = every_positive(name)
    normal = 0
    for x, spacing in zip(curve["x"]["values"], curve["series"][name]):
        if spacing is None:
            assert x < values[0] or x > values[-1]
            continue
        below = min(int(torch.searchsorted(values, x, right=True)) - 1, len(values) - 2)
        assert spacing * x == (values[below + 1] - values[below]).item()
        if x >= rows[name]["least normal"]:
            assert spacing == rows[name]["ULP at 1"]  # a flat line
            normal += 1
        else:
            assert spacing > rows[name]["ULP at 1"]
    assert normal >= 15


def test_the_picture_shows_each_formats_bits():
    drawing = (labkit.REPOSITORY / "book/figures/formats.svg").read_text(encoding="utf-8")
    for name, each in FORMATS.items():
        assert f"{name}: 1 + {each.exponent_bits} + {each.fraction_bits}" in drawing
    for part, bits in (("sign", 1), ("exponent", "exponent_bits"), ("fraction", "fraction_bits")):
        wanted = sum(bits if bits == 1 else getattr(each, bits) for each in FORMATS.values())
        assert drawing.count(f'class="{part}"') == wanted
    assert "currentColor" in drawing and "#000" not in drawing
