"""Regular expressions for texts in our resources, which the CEL rules, the models and the converters share.

Their syntax is RE2's, as CEL's `matches` and pydantic require. `compiled` returns them for Python.
"""

from __future__ import annotations

import re

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_PART = "(255|254|252|248|240|224|192|128|0)"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"

IPV4 = f"^({_OCTET}[.]){{3}}{_OCTET}$"
_GROUP = "(0|[1-9a-f][0-9a-f]{0,3})"
IPV6 = (
    f"^(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,7}}:|:(:{_GROUP}){{1,7}}|"
    + "|".join(f"({_GROUP}:){{1,{7 - after}}}(:{_GROUP}){{1,{after}}}" for after in range(1, 7))
    + ")$"
)
"""Lower case without leading zeros (RFC 5952): nearly one spelling for each address. No zone, no dotted end."""
NO_UNICAST_IPV6 = "^(ff..:|fe[89ab].:|::1?$|::ffff:)"
"""Multicast, link-local, unspecified, loopback, and mapped IPv4 addresses."""
NETMASK = f"^(255[.]255[.]255[.]{_PART}|255[.]255[.]{_PART}[.]0|255[.]{_PART}[.]0[.]0|{_PART}[.]0[.]0[.]0)$"
MAC = "^([0-9a-f]{2}:){5}[0-9a-f]{2}$"
"""The same pattern as in `tink.mac`. Definitions in clusters contain this text."""
HOSTNAME = f"^{_LABEL}([.]{_LABEL})*$"
LIKE_AN_ADDRESS = "^[0-9.]+$"
VLAN = "^[1-9][0-9]{0,3}$"
MAX_VLAN = 4094
HTTP_URL = r"^https?://[^\s/?#]+([/?#][^\s]*)?$"
ARTIFACT_URL = r"^(https?://[^\s/?#]+([/?#][^\s]*)?|file://(localhost)?/[^\s]+)$"
ENDS_IPXE_COMMAND = r"[[:cntrl:]]|(^|\s)(&&|\|\||;)(\s|$)|(^|\s)#"
DEVICE_PATH = r"^(/[^/\s]+)+/?$"
PARTITION = (
    "^/dev/((sd|hd|vd|xvd)[a-z]+[0-9]+|(cciss/|ida/|rd/)?[a-z]+[a-z0-9]*[0-9]p[0-9]+"
    "|disk/by-[a-z]+/.*-part[0-9]+|mapper/.*-part[0-9]+|disk/by-part(uuid|label)/.*)/?$"
)
"""Linux names partitions after their disk: sda1; with a p after a digit: nvme0n1p1. udev's links end with -part1, and
two directories of links hold nothing but partitions.
"""
OBJECT_NAME = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
BMC_PROVIDER = "(?i)^(ipmitool|asrockrack|gofish|IntelAMT|dell|supermicro|openbmc)$"
"""Rufio's pattern, unchanged: its definition and ours contain this text."""
FINGERPRINT = "^([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}$"
"""SHA-256 in hex, with colons as `openssl x509 -fingerprint` prints it, or without."""
AGENT_ID = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,252}$"
"""An agent id on a kernel's command line: one word for iPXE, the kernel and shells alike."""
SPACE = r"\s"
VOLUME = r"^(/[^:]*|[^\W_][\w.-]*):/[^:]+(:[^:]*)?$"

_SPACES = r"\t\n\f\r "
_DIFFERS = re.compile(r"\[[^\]]*\]|\\s|\$")


def compiled(pattern: str) -> re.Pattern[str]:
    r"""Return a pattern for Python, where `\s` also matches a vertical tab and `$` a newline; in RE2 they do not."""
    pattern = pattern.replace("[[:cntrl:]]", r"[\x00-\x1f\x7f]")
    return re.compile(_DIFFERS.sub(_as_python, pattern), re.ASCII)


def _as_python(found: re.Match[str]) -> str:
    if found[0].startswith("["):
        return found[0].replace(r"\s", _SPACES)
    return r"\Z" if found[0] == "$" else f"[{_SPACES}]"
