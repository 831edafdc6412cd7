"""`labkit.at_the_edges` on functions whose edges are known, and on our GeLU."""

import math

import pytest
import torch

import labkit


@pytest.fixture(scope="module")
def gelu():
    return labkit.load("gelu")


@pytest.fixture
def cells(session, gelu):
    """{case: {label: cell}} of functions whose edges follow from their formulas, and of our GeLU."""
    flushed = lambda x: torch.where(x.abs() < torch.finfo(x.dtype).tiny, x * 0, x * 1)  # noqa: E731
    variants = {"half": lambda x: x / 2, "square": lambda x: x * x, "flushed": flushed,
                "composed": gelu.rivals.composed, "F.gelu": gelu.rivals.native,
                **{f"v{v}": lambda x, v=v: gelu(x, version=v) for v in (1, 7)}}
    return {row["case"]: row for row in labkit.at_the_edges("edges", variants, "Edges")}


def test_an_overflowing_gradient_is_found_where_it_begins(cells):
    row = cells["float16: least x > 0 whose gradient is not finite"]
    assert row["half"] == "none" and row["v7"] == "none"
    # 2x is beyond float16's 65504 once it rounds to 65536, from 65520 on: x of 32760 is a tie, and rounds up.
    assert row["square"] == pytest.approx(32768, rel=1e-3) and row["square"] > 65504 / 2
    # The factor 0.044715 x^2, with which autograd multiplies a zero, overflows: 0 * inf.
    assert row["composed"] == pytest.approx(math.sqrt(65520 / 0.044715), rel=2e-3)
    row = cells["bfloat16: least x > 0 whose gradient is not finite"]
    assert row["v7"] == "none" and row["F.gelu"] == pytest.approx(2.0**64, rel=1e-2)


def test_a_small_gradient_is_lost_in_float16_only(cells):
    assert cells["float16: gradient at 1, for 1e-8 from above"]["v7"] == 0
    assert cells["bfloat16: gradient at 1, for 1e-8 from above"]["half"] == pytest.approx(0.5e-8, rel=2**-8)
    assert cells["bfloat16: gradient at 1, for 1e-8 from above"]["v7"] == pytest.approx(1.083e-8, rel=2**-7)


@pytest.mark.parametrize("kind, power", [("float16", -20), ("bfloat16", -130), ("float32", -130)])
def test_a_denormal_is_kept_or_flushed(cells, kind, power):
    row = cells[f"{kind}: gelu(2^{power}), denormal"]
    assert row["flushed"] == 0 and row["half"] == row["v1"] == row["v7"] == 2.0 ** (power - 1)


def test_only_the_sigmoid_form_has_a_tail(cells):
    row = cells["float32: least result not 0 in the tail"]
    assert row["F.gelu"] > 1e-8 and 0 < row["v7"] < 1e-30 and row["half"] == 0.5


def test_the_policy_at_infinities_and_nan(cells):
    told = {x: tuple(cells[f"float16: {what} at {x}"]["v7"] for what in ("result", "gradient")) for x in ("inf", "-inf", "NaN")}
    assert told == {"inf": ("inf", 1), "-inf": (0, 0), "NaN": ("NaN", "NaN")}
    assert cells["float16: gradient at inf"]["F.gelu"] == "NaN"


def test_it_asks_for_variants():
    with pytest.raises(ValueError, match="variants is empty"):
        labkit.at_the_edges("edges", {}, "Edges")
