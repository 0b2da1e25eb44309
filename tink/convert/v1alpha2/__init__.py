"""Objects that say they are of v1alpha2, of which there have been several: `conversion` decides which one it is.

`first_revision` carries over what the CRD refactor proposal had first.
"""

from tink.convert.v1alpha2.conversion import UPSTREAM, UPSTREAM_KINDS, convert

__all__ = ["UPSTREAM", "UPSTREAM_KINDS", "convert"]
