"""A Hardware for a machine that nobody has registered: what its operator copies, completes and applies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from tink.api.v1alpha2 import API_VERSION


def hardware_manifest(mac: str, address: Sequence[str]) -> str:
    """A Hardware manifest for `mac`, ready to be completed and given to `kubectl apply -f -`.

    The lines of `address` stand in its `dhcp`, as comments: an address is left to the operator, so that applying it
    unread gives no machine a wrong one. The MAC is quoted, because YAML 1.1 reads an unquoted one of digits as a number
    in base 60.
    """
    name = "machine-" + mac.replace(":", "-")
    lines = indent("".join(f"# {line}\n" for line in address), 8 * " ")
    return f"""\
apiVersion: {API_VERSION}
kind: Hardware
metadata:
  name: {name}
spec:
  networkInterfaces:
    "{mac}":
      dhcp:
        hostname: {name}
{lines}  # osie:
  #   name: the OSIE to netboot
  # storageDevices:
  #   - /dev/sda
"""
