"""Kinds of values that options take, as click wants them: each says what is wrong with one in a usage error."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, ClassVar

import click

from edge.callers import Networks
from ipxe.scripts import kernel_words
from tink.kube.manifests import DEFAULT_NAMESPACE

_LEAST_BYTES = 100_000  # no kernel is smaller
_IPV6 = 6
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = rf"{_LABEL}(\.{_LABEL})*"
_LONGEST_NAME = 253


class Ipv4(click.ParamType[str]):
    """An IPv4 address of this host, in dotted form."""

    name = "ipv4"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as it was given, or a usage error."""
        try:
            address = ipaddress.IPv4Address(value)
        except ValueError:
            self.fail(f"{value!r} is no IPv4 address", param, ctx)
        if address.is_unspecified or address.is_multicast:
            self.fail(f"{value} is not the address of one host: machines must be able to reach it", param, ctx)
        return str(address)


class Interface(click.ParamType[tuple[str, str]]):
    """An interface that faces machines, and optionally this host's address there: `eth1` or `eth1=10.0.0.1`."""

    name = "name[=ipv4]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """The name, and the address or an empty string."""
        if isinstance(value, tuple):
            return value
        name, equals, address = value.partition("=")
        if not name or (equals and not address):
            self.fail(f"{value!r} must be like eth1 or eth1=10.0.0.1", param, ctx)
        return name, Ipv4().convert(address, param, ctx) if address else ""


class ApiAddress(click.ParamType[str]):
    """An address of this host that others reach, or 0.0.0.0 for all."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address in its shortest form, or a usage error."""
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            self.fail(f"{value!r} is no address; names are for --api-name", param, ctx)
        if address.is_loopback:
            self.fail(f"the API is always there on loopback; leave {value} out", param, ctx)
        if address.is_multicast or (address.is_unspecified and address.version == _IPV6):
            self.fail(f"{value} is not the address of one host: give those that this host has", param, ctx)
        return str(address)


class HostName(click.ParamType[str]):
    """A DNS name, or an address."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name in lower case, or a usage error."""
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            name = str(value).lower().rstrip(".")
        if len(name) > _LONGEST_NAME or not re.fullmatch(_NAME, name):
            self.fail(f"{value!r} is no name of a host, such as tinkedge.example.org", param, ctx)
        return name


class Size(click.ParamType[int]):
    """A number of bytes, with a unit or without: 500MB, 20GB, 1TiB."""

    name = "size"
    _units: ClassVar[dict[str, int]] = {"": 1} | {
        f"{prefix}{suffix}": base ** (power + 1)
        for suffix, base in (("b", 1000), ("ib", 1024))
        for power, prefix in enumerate("kmgt")
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", value.strip().lower())
        if match is None or match[2] not in self._units:
            self.fail(f"{value!r} is no size; 20GB and 512MiB are", param, ctx)
        size = int(match[1]) * self._units[match[2]]
        if size < _LEAST_BYTES:
            self.fail(f"{value!r} is less than {_LEAST_BYTES} bytes: no kernel fits", param, ctx)
        return size


class Osie(click.ParamType[tuple[str, str]]):
    """The name of an OSIE, with its namespace or in `default`."""

    name = "[namespace/]name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Namespace and name."""
        if isinstance(value, tuple):
            return value
        namespace, slash, name = value.rpartition("/")
        if not name or (slash and not namespace) or "/" in namespace:
            self.fail(f"{value!r} must be like hook or provisioning/hook", param, ctx)
        return namespace or DEFAULT_NAMESPACE, name


class KernelWords(click.ParamType[tuple[str, ...]]):
    """Words of a kernel's command line, as iPXE splits it."""

    name = "words"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The words."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(kernel_words(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


class NetworkList(click.ParamType[Networks]):
    """Networks and single addresses, IPv4 or IPv6, with commas in between: `10.1.0.0/16,192.0.2.7`."""

    name = "cidr,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Networks:
        """The networks."""
        if isinstance(value, tuple):
            return value
        networks = []
        for part in filter(None, (part.strip() for part in value.split(","))):
            try:
                networks.append(ipaddress.ip_network(part))
            except ValueError as error:
                self.fail(f"{part!r} is no network such as 10.1.0.0/16: {error}", param, ctx)
        return tuple(networks)
