"""Getting to know who is behind an address of our link, before anything is told that is one machine's.

The neighbour table knows whoever has asked for us by ARP. A host that has not, for it remembers us from before or has
just taken another one's address, is in none: what it is told then rests on its address alone. So it is asked first, as
the kernel asks before it sends anything anyhow.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

SECONDS: Final = 1.0
"""How long an answer is waited for; the kernel asks three times, a second apart, and a host answers at once."""
_LOOK_SECONDS: Final = 0.01
_DISCARD_PORT: Final = 9  # RFC 863


class AddressResolution:
    """Asks hosts of our links who they are."""

    def __init__(self, is_hidden: Callable[[str], bool]) -> None:
        """`is_hidden(ip)`: whether the host at `ip` (dotted) is on a link of ours and not known yet."""
        self.is_due = is_hidden

    async def resolve(self, ip: str) -> bool:
        """Whether the host at `ip` is known now."""
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            try:
                sock.sendto(b"", (ip, _DISCARD_PORT))
            except OSError as error:
                log.debug("%s can't be asked who it is: %s", ip, error.strerror)
                return False
        for _ in range(int(SECONDS / _LOOK_SECONDS)):
            if not self.is_due(ip):
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False
