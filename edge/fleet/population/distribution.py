"""How long something takes, where machines differ: a number, `[least, most]`, or `{median: M, p99: P}`. Pure."""

from __future__ import annotations

import math
import random
from statistics import NormalDist
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

MAX_SECONDS: Final = 86_400.0
_NORMAL: Final = NormalDist()


class Distribution(BaseModel):
    """Seconds between `least` and `most`, evenly; or with a median and a p99, log-normal, as disks and people are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    least: float = 0.0
    most: float = 0.0
    median: float = 0.0
    p99: float = 0.0

    def draw(self, rng: random.Random) -> float:
        """One value, in seconds. Takes one number from `rng`, whatever the kind."""
        if not self.median:
            return self.least + (self.most - self.least) * rng.random()
        sigma = math.log(self.p99 / self.median) / _NORMAL.inv_cdf(0.99)
        return min(
            math.exp(math.log(self.median) + sigma * _NORMAL.inv_cdf(min(max(rng.random(), 1e-9), 1 - 1e-9))),
            MAX_SECONDS,
        )


def _read(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("a number of seconds, [least, most], or {median: M, p99: P}")  # noqa: TRY004 - pydantic's
    if isinstance(value, int | float):
        return {"least": float(value), "most": float(value)}
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise ValueError("a list must be [least, most]")
        return {"least": value[0], "most": value[1]}
    return value


def _check(found: Distribution) -> Distribution:
    if found.median or found.p99:
        if not 0 < found.median <= found.p99 <= MAX_SECONDS or found.least or found.most:
            raise ValueError(f"median and p99 must be above 0, in this order, and at most {MAX_SECONDS:.0f}")
    elif not 0 <= found.least <= found.most <= MAX_SECONDS:
        raise ValueError(f"must be from 0 to {MAX_SECONDS:.0f} seconds, the least first")
    return found


Seconds = Annotated[Distribution, BeforeValidator(_read), AfterValidator(_check)]
"""A field of a profile."""


def even(least: float, most: float) -> Distribution:
    """Between two bounds."""
    return Distribution(least=least, most=most)


def around(median: float, p99: float) -> Distribution:
    """Log-normal."""
    return Distribution(median=median, p99=p99)
