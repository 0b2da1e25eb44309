"""The error of this package."""


class ImageError(Exception):
    """A file can't be imported, listed or removed. The message names it, and what to do."""
