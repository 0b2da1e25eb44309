"""The error of this package."""

from tink.errors import TinkedgeError


class ImageError(TinkedgeError):
    """A file can't be imported, listed or removed. The message names it, and what to do."""
