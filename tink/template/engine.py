"""Render one text. Compiled programs of recent texts are cached: a Template of a thousand Workflows is parsed once."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from tink.golang.values import CallError, Value
from tink.template.compile import RenderBudget, TemplateProgram, compile_text
from tink.template.errors import TemplateExecutionError
from tink.template.functions import FUNCTIONS
from tink.template.sprig import deep_copy

CACHED_CHARACTERS: Final = 1 << 20
"""Characters of template text in the cache. A compiled character takes about 100 bytes."""


class ProgramCache:
    """A cache of compiled templates by their text. It drops the least recently used template first."""

    def __init__(self, capacity: int = CACHED_CHARACTERS) -> None:
        self._capacity = capacity
        self._size = 0
        self._programs: OrderedDict[str, TemplateProgram] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, text: str, name: str) -> TemplateProgram:
        """Return the program of a text. Raises TemplateSyntaxError, which calls it `name`. Failures are not cached."""
        with self._lock:
            program = self._programs.get(text)
            if program is not None:
                self._programs.move_to_end(text)
                return program
        program = compile_text(text, FUNCTIONS, name)
        with self._lock:
            if text not in self._programs and len(text) <= self._capacity:
                self._programs[text] = program
                self._size += len(text)
                while self._size > self._capacity:
                    dropped, _ = self._programs.popitem(last=False)
                    self._size -= len(dropped)
        return program


_cache: Final = ProgramCache()


def check(text: str, name: str = "template") -> None:
    """Raise TemplateSyntaxError if the text is no template."""
    if "{{" in text:
        _cache.get(text, name)


def render(text: str, dot: Value, name: str = "template", budget: RenderBudget | None = None) -> str:
    """Render a text with `dot` as its data, which must be JSON-like.

    Errors call the template `name`. Raises TemplateSyntaxError and TemplateExecutionError.
    """
    if "{{" not in text:
        return text
    program = _cache.get(text, name)
    if not program.changes_maps:
        return program.render(dot, name, budget)
    charged = budget or RenderBudget()

    def spend(steps: int) -> None:
        charged.steps -= steps
        if charged.steps < 0:
            raise TemplateExecutionError(
                f"template: {name}: to copy the data takes more than {charged.limits.steps} steps", name=name
            )

    try:  # a copy, so that no other template sees the changes
        own = deep_copy(spend, dot)
    except CallError as error:
        raise TemplateExecutionError(f"template: {name}: {error}", name=name) from None
    return program.render(own, name, budget)
