"""Machines that have secrets from each other, for the tests of who is asking, and their bytes on the wire.

m1 (127.0.0.5), m2 (127.0.0.6) and spare (no address); each has the word "secret-of-<name>" in all that is its own.
Whoever asks, however: nobody but its machine sees that word.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from edge.callers import MetadataTokens, Networks, TrustedNetworks
from edge.machines import DhcpMode

MAC, IP = "52:54:00:00:00:01", "127.0.0.5"
OTHER_MAC, OTHER_IP = "52:54:00:00:00:02", "127.0.0.6"
SPARE_MAC = "52:54:00:00:00:0d"
PROXY, SECOND_PROXY, NAT, STRANGER = "127.0.1.1", "127.0.1.2", "127.0.2.1", "127.0.0.99"
MODES = [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY, DhcpMode.OFF]


def networks(*texts: str) -> Networks:
    return tuple(ipaddress.ip_network(text) for text in texts)


PROXIES = networks("127.0.1.0/24")
TRUSTED = TrustedNetworks(proxies=PROXIES, nat=networks("127.0.2.0/24"))

OtherRack = Callable[..., AbstractAsyncContextManager[Any]]


def hardware(name: str, mac: str, ip: str | None, *, namespace: str = "default", **annotations: str) -> dict[str, Any]:
    word = f"secret-of-{name}"
    interface = {"dhcp": {"ip": ip, "hostname": word}} if ip is not None else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {"tinkerbell.org/instance-id": word} | annotations,
        },
        "spec": {
            "networkInterfaces": {mac: interface},
            "osie": {"name": "lab"},
            "kernelParams": [word],
            "instance": {"userdata": word, "vendordata": word},
        },
    }


def fill(rack: Any) -> Any:
    rack.inventory.apply(hardware("m1", MAC, IP))
    rack.inventory.apply(hardware("m2", OTHER_MAC, OTHER_IP))
    rack.inventory.apply(hardware("spare", SPARE_MAC, None))
    return rack


def tokens(rack: Any, **settings: Any) -> MetadataTokens:
    return MetadataTokens(rack.keys, **settings)


async def raw(rack: Any, request: bytes, ip: str = OTHER_IP) -> bytes:
    """Everything that is answered to these bytes, until the connection ends or there is silence."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(ip, 0))
    writer.write(request)
    answer = b""
    try:
        while part := await asyncio.wait_for(reader.read(65536), 0.3 if answer else 5):
            answer += part
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    return answer
