"""What the DHCP server is told about itself and its network, checked before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from urllib.parse import urlsplit

from edge.dhcp.wire import options
from tink.errors import TinkedgeError


class SettingsError(TinkedgeError, ValueError):
    """A setting of the DHCP server that can't work."""


@dataclass(frozen=True, slots=True)
class DhcpSettings:
    """What the DHCP server says of itself and of its neighbours.

    `server_ip` is this host's address on the machines' network (option 54); `tftp_ip` that of the TFTP server;
    `http_base_url` where machines reach the edge's HTTP server, e.g. `http://172.31.0.1:7080`.
    `networks` are those of the interface that is served; without any, nothing is known of them. `ipv6`: machines are
    served over IPv6, too, so that one that has only such an address is silently left to that.

    Raises SettingsError on construction.
    """

    server_ip: str
    tftp_ip: str
    http_base_url: str
    networks: tuple[IPv4Network, ...] = ()
    ipv6: bool = False

    def __post_init__(self) -> None:
        for field, value in (("server_ip", self.server_ip), ("tftp_ip", self.tftp_ip)):
            if not options.is_host(value):
                raise SettingsError(
                    f"DHCP: {field} is {value!r}, and machines reach no host there: give --interface the one that "
                    "faces machines, or leave DHCP out with --disable dhcp"
                )
        url = urlsplit(self.http_base_url)
        if url.scheme not in ("http", "https") or not url.hostname or self.http_base_url.endswith("/"):
            raise SettingsError(
                f"DHCP: http_base_url is {self.http_base_url!r}; it must be like http://172.31.0.1:7080"
            )
        if len(self.http_base_url) > 150:  # with path, MAC and file name it has to fit into option 67
            raise SettingsError("DHCP: http_base_url is longer than 150 characters")
