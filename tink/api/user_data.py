"""What cloud-init would not take of user-data, although it can be stored and served.

cloud-init knows what it is given by how it begins (cloudinit.handlers, INCLUSION_TYPES_MAP): text that
begins with none of its words is dropped with a warning in its log, and the machine comes up with nothing of it. So does
a `#cloud-config` that is no YAML mapping. What is for others (Ignition, Talos, kickstart, a MIME multi-part, gzip) is
left alone. Pure.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

from tink.api.yaml import YamlError, read

MAX_BYTES: Final = 32 * 1024
"""Longer text is not looked at, for that would take more than some milliseconds; EC2 takes 16 KiB."""

_HEADER: Final = "#cloud-config"
_MEANT: Final = re.compile(r"#+[ \t]*cloud[-_ ]?config\b", re.IGNORECASE)
_OTHER_HEADERS: Final = re.compile(r"#cloud-config-(archive|jsonp)\b", re.IGNORECASE)
_WORDS: Final = frozenset({
    "apt", "autoinstall", "bootcmd", "chpasswd", "disk_setup", "fqdn", "fs_setup", "groups", "growpart",
    "hostname", "keyboard", "locale", "manage_etc_hosts", "merge_how", "mounts", "network", "ntp", "output",
    "package_reboot_if_required", "package_update", "package_upgrade", "packages", "password", "phone_home",
    "power_state", "preserve_hostname", "resize_rootfs", "rsyslog", "runcmd", "snap", "ssh",
    "ssh_authorized_keys", "ssh_import_id", "ssh_keys", "ssh_pwauth", "swap", "system_info", "timezone", "user",
    "users", "write_files", "yum_repos",
})  # fmt: skip
"""Names at the top of a cloud-config (its schema-cloud-config-v1.json)."""
_KNOWN: Final = ("#!", "#include", "#part-handler", "#upstart-job", "#cloud-boothook", "## template: jinja")
"""Other first lines that cloud-init has a handler for."""


def problem(text: str) -> str:
    """What keeps cloud-init from taking it, in a clause; empty: nothing that is known. Quotes nothing of it.

    User-data may have secrets, so only lines' numbers are said.
    """
    if not text.strip() or len(text) > MAX_BYTES:
        return ""
    begins = text.lstrip()  # as cloud-init does it (cloudinit.handlers, type_from_starts_with)
    if _OTHER_HEADERS.match(begins):
        return ""
    if begins[: len(_HEADER)].lower() == _HEADER:
        return _of_cloud_config(text)
    if _MEANT.match(begins.removeprefix("\ufeff")):
        return f"its first line is not {_HEADER}, so cloud-init takes nothing of it"
    return _of_nameless(begins)


def _of_cloud_config(text: str) -> str:
    try:
        found = list(read(text, []))
    except YamlError as error:
        if not isinstance(error.__cause__, yaml.YAMLError):
            return ""  # what a Kubernetes object can't have, cloud-init may
        where = f"line {error.line}: " if error.line else ""
        return f"it is no YAML, {where}{error}, so cloud-init takes nothing of it"
    if len(found) > 1:
        return f"it has {len(found)} YAML documents, of which cloud-init takes none"
    if found and found[0] is not None and not isinstance(found[0], dict):
        return "it is YAML, but no mapping of names to values, so cloud-init takes nothing of it"
    return ""


def _of_nameless(text: str) -> str:
    """Text without a header: it is said of what can be nothing but a cloud-config."""
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    name, colon, _ = first.partition(":")
    if not colon or name not in _WORDS or text.startswith(_KNOWN):
        return ""
    try:
        found = list(read(text, []))
    except YamlError:
        return ""
    if len(found) == 1 and isinstance(found[0], dict) and found[0].keys() <= _WORDS:
        return f"its first line has to be {_HEADER}, else cloud-init takes nothing of it"
    return ""
