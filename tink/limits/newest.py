"""Mappings of bounded size, for content that unknown or many machines cause."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Newest(OrderedDict[T, S]):
    """A dictionary of at most `most` entries. Setting a key makes it the newest, and drops the oldest if it is full."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: T, value: S) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
