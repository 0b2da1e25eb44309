"""Kinds of values that options take, as click wants them: each says what is wrong with one in a usage error."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, ClassVar

import click

from edge.callers import Networks
from edge.commands.options import Ipv4
from ipxe.parameters import kernel_words
from tink.kube.manifests import DEFAULT_NAMESPACE

_LEAST_BYTES = 100_000  # no kernel is smaller
_IPV6 = 6
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = rf"{_LABEL}(\.{_LABEL})*"
_LONGEST_NAME = 253
_LONGEST_SELECTOR = 2000
_LABEL_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LAST_PORT = 65535


class Ipv4OrAll(Ipv4):
    """The same, or 0.0.0.0 for all of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as it was given, or a usage error."""
        return str(value) if value == "0.0.0.0" else super().convert(value, param, ctx)  # noqa: S104 - compared


class EdgeAddress(click.ParamType[tuple[str, int]]):
    """Where another edge is: `10.1.0.3` or `10.1.0.3:7080`."""

    name = "ipv4[:port]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """The address, and the port, 0 where none is given: that of this edge's own HTTP."""
        if isinstance(value, tuple):
            return value
        address, colon, port = str(value).partition(":")
        if colon and not (port.isascii() and port.isdigit() and 0 < int(port) <= _LAST_PORT):
            self.fail(f"{value!r} must be like 10.1.0.3 or 10.1.0.3:7080", param, ctx)
        return Ipv4().convert(address, param, ctx), int(port or 0)


class PeerGroup(click.ParamType[str]):
    """A name that edges have in common, fit for a label of Kubernetes."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, or a usage error."""
        if value and not re.fullmatch(_LABEL_VALUE, str(value)):
            self.fail(
                f"{value!r} is no value of a label, such as tinkedge or rack-7: 63 characters at most", param, ctx
            )
        return str(value)


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


class NamespaceList(click.ParamType[tuple[str, ...]]):
    """Names of namespaces, with commas in between: `berlin,ulm`."""

    name = "name,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names, each once."""
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(filter(None, (part.strip() for part in value.split(",")))))
        for name in names:
            if not re.fullmatch(_LABEL, name):
                self.fail(f"{name!r} is no name of a namespace: lower case letters, digits and '-'", param, ctx)
        return names


class LabelSelector(click.ParamType[str]):
    """Which objects, by their labels, as kubectl's option -l takes it: `site=berlin`, `site in (berlin,ulm),!spare`."""

    name = "selector"
    _key = rf"({_NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
    _value = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
    _one = rf"\s*(!\s*{_key}|{_key}(\s*(=|==|!=)\s*{_value}|\s+(in|notin)\s*\(\s*{_value}(\s*,\s*{_value})*\s*\))?)\s*"
    _all = re.compile(rf"{_one}(,{_one})*")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The selector as it was given."""
        text = str(value).strip()
        if text and (len(text) > _LONGEST_SELECTOR or not self._all.fullmatch(text)):
            self.fail(f"{value!r} is no label selector such as site=berlin or 'site in (berlin,ulm)'", param, ctx)
        return text


class PortList(click.ParamType[tuple[int, ...]]):
    """TCP ports with commas in between: `50061,8080`."""

    name = "port,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The ports."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        for part in parts:
            if not (part.isascii() and part.isdigit() and 0 < int(part) < 1 << 16):
                self.fail(f"{part!r} is no port: 1 to 65535, with commas in between", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


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
