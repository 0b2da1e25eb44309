"""All mistakes of a Hardware: those of its fields (`tink.api.mistakes`), and fields of v1alpha1 without an effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tink.api import mistakes
from tink.api.annotations import V1ALPHA1_ANNOTATION
from tink.api.mistakes import Mistake, Site
from tink.api.v1alpha2 import as_mapping


def hardware_mistakes(hardware: Any, site: Site, osie: Callable[[str, str], Any] | None = None) -> list[Mistake]:
    """Return the mistakes of a stored Hardware, the worst first, with arguments as for `tink.api.mistakes`."""
    found = mistakes.hardware_mistakes(hardware, site, osie)
    if V1ALPHA1_ANNOTATION in as_mapping(as_mapping(as_mapping(hardware).get("metadata")).get("annotations")):
        # Imported here, because the conversion takes time to import, and few sites need it.
        from tink import versions

        found = mistakes.worst_first(found + versions.ignored_field_mistakes(hardware))
    return found
