"""`formats`: what floating-point formats can hold, and how far apart their numbers are, computed from their bits."""

from __future__ import annotations

import dataclasses
import math

from labkit import results
from labkit.report import keep

BINADES = range(-34, 34)  # powers of two that the curve covers: about 1e-10 to 1e10
TICKS = {"10⁻⁹": 1e-9, "10⁻⁶": 1e-6, "10⁻³": 1e-3, "1": 1.0, "10³": 1e3, "10⁶": 1e6, "10⁹": 1e9}


@dataclasses.dataclass(frozen=True)
class Format:
    """A binary format: a sign, an exponent with the usual bias, a fraction with a hidden leading bit, denormals below.

    infinities: whether the highest exponent is kept for infinities and NaN, as IEEE 754 has it. Without, only its last
    number is a NaN and the others are ordinary ones.
    """

    exponent_bits: int
    fraction_bits: int
    infinities: bool = True

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> float:
        """The largest finite number."""
        top = 2**self.exponent_bits - 1 - self.bias - self.infinities
        spared = 1 if self.infinities else 2  # steps below the next power of two
        return math.ldexp(2 - spared * self.ulp_at_1, top)

    @property
    def least_normal(self) -> float:
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def least_denormal(self) -> float:
        return self.least_normal * self.ulp_at_1

    @property
    def ulp_at_1(self) -> float:
        """The distance from 1 to the next number."""
        return math.ldexp(1.0, -self.fraction_bits)

    def relative_spacing(self, x: float) -> float | None:
        """The distance between the neighbouring numbers around x > 0, over x; None where the format has no numbers."""
        if not self.least_denormal <= x <= self.largest:
            return None
        exponent = math.frexp(max(x, self.least_normal))[1] - 1
        return math.ldexp(self.ulp_at_1, exponent) / x


FORMATS = {"float32": Format(8, 23), "tf32": Format(8, 10), "float16": Format(5, 10), "bfloat16": Format(8, 7),
           "float8_e4m3fn": Format(4, 3, infinities=False), "float8_e5m2": Format(5, 2)}


def formats(name: str) -> list[dict]:
    """Shows and keeps the formats as a table, and the distance between their numbers as a curve.

    name: what the table is called in results/; <name>_spacing is the curve: the distance between neighbouring numbers,
    relative to their size, at powers of two, where it is greatest: from one to the next it halves. A line ends where its
    format does, and rises where it has only denormals.

    Returns the rows: bits of sign, exponent and fraction, the largest number, the least normal one, the least denormal one,
    the distance from 1 to the next number, and how many decimal digits that is. All of it is exact on any machine.
    """
    rows = [{"format": label, "sign": 1, "exponent": each.exponent_bits, "fraction": each.fraction_bits,
             "largest": each.largest, "least normal": each.least_normal, "least denormal": each.least_denormal,
             "ULP at 1": each.ulp_at_1, "decimal digits": round((each.fraction_bits + 1) * math.log10(2), 1)}
            for label, each in FORMATS.items()]
    x = [2.0**k for k in BINADES]
    curve = {"kind": "curve", "title": "Distance between neighbouring numbers at powers of two, relative to their size",
             "x": {"label": "size of the number", "scale": "log", "values": x, "ticks": list(TICKS.values()),
                   "tick_labels": list(TICKS)},
             "y": {"label": "distance / size", "scale": "log"},
             "series": {label: [each.relative_spacing(point) for point in x] for label, each in FORMATS.items()}}
    keep({name: results.table_of("Floating-point formats", rows, exact=True), f"{name}_spacing": curve}, results.EXACT)
    return rows
