"""Kernel parameters of a site and of an OSIE, with placeholders for the facts of a machine.

`{{.MAC}}` and its like are filled in here, from a fixed set and without evaluation; `${...}` is iPXE's own. Filled-in
values consist of a few harmless characters, so that a Hardware can't add a command, another parameter or a setting of
iPXE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tink.api import patterns
from tink.api.v1alpha2 import DHCP, Hardware
from tink.errors import TinkedgeError

# Maximum length of an annotation with kernel parameters: no kernel reads more.
MAX_CHARACTERS = 2047

_PLACE = re.compile(r"\{\{\s*\.?([A-Za-z]*)\s*\}\}")
_AGENT_ID = patterns.compiled(patterns.AGENT_ID)
_HOOKOS = ("tink_worker_image=", "docker_registry=")
# Words that crash HookOS' bootkit without a value: it reads the text behind their `=` unchecked.
_WITH_A_VALUE = frozenset((
    "docker_registry", "tink_worker_image", "registry_username", "registry_password", "grpc_authority", "worker_id",
    "tinkerbell_tls", "tinkerbell_insecure_tls", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "packet_base_url",
    "tinkerbell",
))  # fmt: skip
# The characters of MACs, addresses, names, agent ids and `ipam=`. Others could end a word or a command.
_HARMLESS = re.compile(r"[A-Za-z0-9._:,/@-]+")
PLACES = ("MAC", "AgentID", "Address", "Name", "Namespace", "Hostname", "IP", "Ipam")
"""The placeholders."""


class ParametersError(TinkedgeError, ValueError):
    """The parameters are invalid; the message has the cause and the remedy."""


def kernel_words(value: str) -> list[str]:
    """Split `value` as iPXE does. Raises ValueError if iPXE or Linux would read it differently.

    Settings of iPXE (`${mac}`) are allowed: iPXE inserts their values.
    """
    words = plain_words(value)
    check_quotes(value)
    return words


def plain_words(value: str) -> list[str]:
    """Split a part of the parameters. Another part may close its quotation marks (`check_quotes` checks all)."""
    if not value.isprintable():
        raise ValueError("has a line break or another control character in it")
    words = value.split()
    for word in words:
        if word in ("&&", "||", ";") or word.startswith("#"):
            raise ValueError(f"has the word {word}, which ends a command in iPXE")
        if word in _WITH_A_VALUE:
            raise ValueError(f"has the word {word} without a value, at which HookOS fails: write {word}=VALUE")
    return words


def check_quotes(value: str) -> None:
    """Check that quotation marks are paired. Raises ValueError."""
    # The kernel reads text between two quotation marks as one word (lib/cmdline.c). The words of the site, of the OSIE
    # and of the Hardware follow each other, so an unpaired mark would take in the words of others.
    if value.count('"') % 2:
        raise ValueError("has a quotation mark without its pair, which takes what is behind it into its word: close it")


def is_hookos(words: list[str] | tuple[str, ...]) -> bool:
    """Return True if the parameters are for HookOS, which needs one of two: the place of its agent's image."""
    return any(word.startswith(_HOOKOS) for word in words)


def filled_in(words: list[str] | tuple[str, ...], known: Mapping[str, str | None]) -> list[str]:
    """Fill in the placeholders from `known`, which has None for missing facts. Raises ParametersError."""

    def value(match: re.Match[str]) -> str:
        found = known[match[1]]
        if not found:
            raise ParametersError(f"has {match[0]}, and the machine has none")
        if not _HARMLESS.fullmatch(found):
            raise ParametersError(f"has {match[0]}, and what belongs there is no single word")
        return found

    check_places(words)
    return [_PLACE.sub(value, word) for word in words]


def check_places(words: list[str] | tuple[str, ...]) -> None:
    """Check that all placeholders exist. Raises ParametersError."""
    for word in words:
        for match in _PLACE.finditer(word):
            if match[1] not in PLACES:
                raise ParametersError(
                    f"has {match[0]}, and there are {', '.join(f'{{{{.{each}}}}}' for each in PLACES)}"
                )
        rest = _PLACE.sub("", word)
        if "{{" in rest or "}}" in rest:
            raise ParametersError(f"has {word}: write {{{{.MAC}}}}, in one word")


def known_of(mac: str, hardware: Hardware | None, worker_id: str, address: str) -> dict[str, str | None]:
    """Return the values of the placeholders, for the interface `mac` of a machine and the edge's `address`."""
    interface = hardware.spec.network_interfaces.get(mac) if hardware is not None else None
    dhcp = (interface.dhcp if interface is not None else None) or DHCP()
    return {
        "MAC": mac,
        "AgentID": worker_id,
        "Address": address,
        "Name": hardware.metadata.name if hardware is not None else None,
        "Namespace": hardware.metadata.namespace if hardware is not None else None,
        "Hostname": dhcp.hostname,
        "IP": dhcp.ipv6.address if ":" in address and dhcp.ipv6 is not None else dhcp.ip,
        "Ipam": _ipam(mac, dhcp),
    }


def agent_id(given: str) -> str:
    """Check and return the agent id in an annotation. Raises ParametersError."""
    if not _AGENT_ID.search(given):
        raise ParametersError("must be one word of letters, digits and . _ : / -, at most 253 characters")
    return given


def _ipam(mac: str, dhcp: DHCP) -> str | None:
    """Return HookOS' parameter for a machine without DHCP: nine fields separated by colons."""
    if not dhcp.ip or not dhcp.netmask:
        return None
    # HookOS reads the MAC with dashes, and lists separated by commas.
    lists = (",".join(dhcp.nameservers or ()), "", ",".join(dhcp.timeservers or ()))
    fields = (mac.replace(":", "-"), dhcp.vlan_id, dhcp.ip, dhcp.netmask, dhcp.gateway, dhcp.hostname, *lists)
    return ":".join(field or "" for field in fields)
