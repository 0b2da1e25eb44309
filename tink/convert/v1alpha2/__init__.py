"""Objects that say they are of v1alpha2, of which there have been several: `conversion` decides which one it is.

`first_revision` carries over what the CRD refactor proposal had first; `upstream` knows tinkerbell/tinkerbell's own.
"""

from tink.convert.v1alpha2.conversion import convert
from tink.convert.v1alpha2.upstream import UPSTREAM, UPSTREAM_KINDS

__all__ = ["UPSTREAM", "UPSTREAM_KINDS", "convert"]
