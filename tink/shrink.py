"""Release the unused memory of bytes before they are cached.

orjson usually returns its whole buffer, which is up to eight times as long as the text: 8,152 bytes for 1,039 (orjson
3.13, glibc's malloc). That is fast for an answer that is sent and dropped, but a cache that counts bytes by `len` would
use eight times its maximum.
"""

from __future__ import annotations


def shrink_to_fit(text: bytes) -> bytes:
    """Return a copy of the bytes in memory of exactly their size."""
    return bytes(memoryview(text))
