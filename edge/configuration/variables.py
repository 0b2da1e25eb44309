"""Variables of the environment that look like ours, and are nobody's: a slip that would cost a night."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import click

from edge.configuration.options import PREFIX, Schema, settable, variable
from edge.configuration.values import nearest

_OTHERS: Final = frozenset({f"{PREFIX}CONFIG", f"{PREFIX}COMPLETE"})


def unknown_variables(
    environment: Mapping[str, str], command: click.Command, commands: Iterable[str], schema: Schema
) -> Iterator[str]:
    """A sentence for each. The options of `commands` are looked at only if one is not an option of `command`."""
    own = {variable(option) for option in settable(command)}
    # _TINKEDGE_COMPLETE is click's own.
    strange = sorted(
        name for name in environment if name.startswith(PREFIX) and name not in own and name not in _OTHERS
    )
    if not strange:
        return
    known = own.union(*({variable(option) for option in settable(schema(name))} for name in commands))
    for name in strange:
        if name not in known:
            yield f"the variable {name} is no option, and does nothing{nearest(name, known)}"
