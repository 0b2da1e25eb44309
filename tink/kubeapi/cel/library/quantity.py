"""Quantities, Kubernetes' numbers with suffixes (`100m`, `1.5Gi`, `1e3`): `quantity`, `isQuantity` and their methods.

A quantity is an integer times a power of ten. Kubernetes stores small ones in 64 bits and others exactly. Which of the
two it is decides the result of `isInteger`; here it is `small`.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.values import MAX_INT, OpaqueValue

_PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_TEXT = re.compile(r"([+-]?)0*([0-9]{0,4096})(?:\.([0-9]{0,4096}))?([eEinumkKMGTP]*[-+]?[0-9]{0,64})", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES = {power: name for name, power in _DECIMAL.items()}
_BINARY_NAMES = {power: name for name, power in _BINARY.items()}
_EXPONENT = re.compile(r"[eE][+-]?[0-9]{1,9}", re.ASCII)
_FACTORS = 18
MAX_SPREAD = 4096
"""Maximum difference of the powers of ten of two quantities that are added or compared exactly."""


@dataclass(slots=True, eq=False)
class Quantity(OpaqueValue):
    """`number` times ten to the `power`. `form` is the format of the text: decimal, binary or exponent."""

    number: int
    power: int
    form: str
    small: bool
    type_name: ClassVar[str] = "kubernetes.Quantity"

    def __eq__(self, other: object) -> bool:
        return type(other) is Quantity and compare(self, other) == 0

    def __hash__(self) -> int:
        return hash(self.number)

    def integer(self) -> int | None:
        """Return the value as a 64-bit integer, or None where Kubernetes returns no integer."""
        if not self.small or self.power < 0 or self.power > 19:
            return None
        value = self.number * 10**self.power
        return value if -MAX_INT - 1 <= value <= MAX_INT else None

    def __str__(self) -> str:
        """Return the canonical text, with the largest suffix that leaves an integer."""
        if not self.number:
            return "0"
        sign = -1 if self.number < 0 else 1
        if self.form == "binary" and -9 <= self.power <= 30:
            whole, rest = divmod(abs(self.number) * 10 ** max(self.power, 0), 10 ** max(-self.power, 0))
            if whole >= 1024 and not rest:
                number, times = _reduced(whole, 1024)
                return f"{sign * number}{_BINARY_NAMES.get(times * 10, '') if times else ''}"
        number, times = _reduced(abs(self.number), 10)
        power = self.power + times
        while power % 3:
            number, power = number * 10, power - 1
        if self.form == "exponent":
            return f"{sign * number}{f'e{power}' if power else ''}"
        return f"{sign * number}{_DECIMAL_NAMES.get(power, f'e{power}')}"


def _suffix(text: str) -> tuple[str, int]:
    """Return the format and exponent of a suffix."""
    if text in _DECIMAL:
        return "decimal", _DECIMAL[text]
    if text in _BINARY:
        return "binary", _BINARY[text]
    if _EXPONENT.fullmatch(text):
        return "exponent", int(text[1:])
    raise EvaluationError("unable to parse quantity's suffix")


def parse(text: str) -> Quantity:
    """Parse a quantity. Raises EvaluationError for other text."""
    match = _TEXT.fullmatch(text)
    if match is None or not text:
        raise EvaluationError(f"quantities must match the regular expression '{_PATTERN}'")
    sign = -1 if match.group(1) == "-" else 1
    whole, places = match.group(2) or "0", match.group(3) or ""
    form, exponent = _suffix(match.group(4))
    number = int(whole + places)
    if form == "binary":
        room = 15 - len(whole) - int(exponent * 3 / 10) - 1
        scaled = number << exponent
        if not places and room >= 0:
            return Quantity(sign * scaled, 0, form, small=True)
        return _exact(sign, scaled, -len(places), form)
    power = exponent - len(places)
    if len(whole) + len(places) <= _FACTORS and power >= -9:
        return Quantity(sign * number, power, form, small=True)
    return _exact(sign, number, power, form)


def _exact(sign: int, number: int, power: int, form: str) -> Quantity:
    """Return a quantity that does not fit into 64 bits, rounded up to whole nanos."""
    if power < -9:
        drop = -9 - power
        number = 1 if drop > MAX_SPREAD and number else -(-number // 10 ** min(drop, MAX_SPREAD))
        power = -9
    if form == "binary":
        if number > MAX_INT * 10**-power:
            number, power = MAX_INT, 0
        elif 0 < number < 10**-power:
            form = "decimal"
    return Quantity(sign * number, power, form, small=False)


def sign(value: Quantity) -> int:
    """Return -1, 0 or 1."""
    return (value.number > 0) - (value.number < 0)


def compare(a: Quantity, b: Quantity) -> int:
    """Return -1, 0 or 1."""
    if sign(a) != sign(b) or not a.number:
        return (sign(a) > sign(b)) - (sign(a) < sign(b))
    size_a, size_b = len(str(abs(a.number))) + a.power, len(str(abs(b.number))) + b.power
    if abs(size_a - size_b) > 1:
        return sign(a) if size_a > size_b else -sign(a)
    low = min(a.power, b.power)
    if max(a.power, b.power) - low > MAX_SPREAD:
        raise EvaluationError("quantities are too far apart to be compared")
    x, y = a.number * 10 ** (a.power - low), b.number * 10 ** (b.power - low)
    return int(x > y) - int(x < y)


def add(a: Quantity, b: Quantity, factor: int = 1) -> Quantity:
    """Return `a + factor * b` in the format of `a`, or of `b` if `a` is zero."""
    number = factor * b.number
    form = b.form if not a.number else a.form
    small = a.small and b.small
    if not number or not a.number:
        kept, power = (a.number, a.power) if not number else (number, b.power)
        return Quantity(kept, power, form, small=small)
    low = min(a.power, b.power)
    if max(a.power, b.power) - low > MAX_SPREAD:
        raise EvaluationError("quantities are too far apart to be added")
    x, y = a.number * 10 ** (a.power - low), number * 10 ** (b.power - low)
    total = x + y
    return Quantity(total, low, form, small=small and max(abs(x), abs(y), abs(total)) <= MAX_INT)


def integer(value: int) -> Quantity:
    """Convert an integer."""
    return Quantity(value, 0, "exponent", small=True)


def approximate(value: Quantity) -> float:
    """Return a double near the value."""
    try:
        return float(value.number) * (10.0**value.power if value.power else 1.0)
    except OverflowError:
        return float("inf") if value.number > 0 else float("-inf")


def _reduced(number: int, base: int) -> tuple[int, int]:
    times = 0
    while number and number % base == 0:
        number //= base
        times += 1
    return number, times
