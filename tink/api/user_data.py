"""Find user-data that the API stores and Hegel serves, but cloud-init ignores.

cloud-init recognises user-data by its first characters (`INCLUSION_TYPES_MAP` in cloudinit/handlers/__init__.py) or,
in a MIME multi-part, by the type of each part. It logs a warning on the machine about anything else, and the machine
comes up without it. It does the same with a `#cloud-config` that PyYAML cannot load as a mapping (`load_yaml` in
cloudinit/util.py). This module makes the same decisions beforehand. Formats of other programs (Ignition, Talos,
kickstart, Windows) are accepted. Pure.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from email import message_from_string
from email.errors import MessageError
from email.message import Message
from typing import Any, Final

import orjson
import yaml

from tink.api.yaml import YamlError, as_yaml_error, check_depth, read

MAX_BYTES: Final = 32 * 1024
"""Longer text is judged by its first lines alone, because parsing it would take too long. EC2 accepts 16 KiB."""

_HEADERS: Final = {
    "#cloud-config-archive": "text/cloud-config-archive",
    "#cloud-config-jsonp": "text/cloud-config-jsonp",
    "## template: jinja": "text/jinja2",
    "#cloud-boothook": "text/cloud-boothook",
    "#include-once": "text/x-include-once-url",
    "#cloud-config": "text/cloud-config",
    "#part-handler": "text/part-handler",
    "#include": "text/x-include-url",
    "#!": "text/x-shellscript",
}
"""The types of text by its first characters; the longest first, as cloud-init compares them."""
_TYPES: Final = {
    *_HEADERS.values(),
    "text/x-shellscript-per-boot",
    "text/x-shellscript-per-instance",
    "text/x-shellscript-per-once",
}
_RENDERED: Final = frozenset(
    {"text/cloud-config", "text/cloud-config-jsonp", "text/x-shellscript", "text/cloud-boothook"}
)
"""The types that the text of a Jinja template may have (the sub-handlers in cloudinit/stages.py)."""
_GUESSED: Final = frozenset({"text/plain", "text/x-not-multipart", "text/x-shellscript"})
"""The declared types of parts for which cloud-init looks at the first characters."""
_GZIPPED: Final = re.compile(r"application/(x-)?(g(un)?zip(ped)?(-compressed)?|compress(ed)?)")
_MIME_VERSION_WITHIN: Final = 4096
"""Bytes in which cloud-init looks for `MIME-Version:` (`convert_string` in cloudinit/user_data.py)."""
_MAX_PARTS: Final = 64

_MISSPELT: Final = re.compile(r"#+[ \t]*cloud[-_ ]?config\b", re.IGNORECASE)
_BEFORE_THE_HEADER: Final = re.compile(r"(```\w*|\s|[\ufeff\u200b\"'`\\]|---|#(?!!|cloud-|include|part-)[^\n]*(\n|$))*")
"""Text before the header that cloud-init does not skip: byte order marks, comments, quotes, code fences."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_WORDS: Final = frozenset({
    "allow_public_ssh_keys", "ansible", "apk_repos", "apt", "apt_pipelining", "apt_reboot_if_required",
    "apt_update", "apt_upgrade", "authkey_hash", "autoinstall", "bootcmd", "byobu_by_default", "ca-certs",
    "ca_certs", "chef", "chpasswd", "cloud_config_modules", "cloud_final_modules", "cloud_init_modules",
    "create_hostname_file", "device_aliases", "disable_ec2_metadata", "disable_root", "disable_root_opts",
    "disk_setup", "drivers", "fan", "final_message", "fqdn", "fs_setup", "groups", "growpart", "grub-dpkg",
    "grub_dpkg", "hostname", "keyboard", "landscape", "launch-index", "locale", "locale_configfile", "lxd",
    "manage_etc_hosts", "manage_resolv_conf", "mcollective", "merge_how", "merge_type", "migrate",
    "mount_default_fields", "mounts", "network", "no_ssh_fingerprints", "ntp", "output",
    "package_reboot_if_required", "package_update", "package_upgrade", "packages", "password", "phone_home",
    "power_state", "prefer_fqdn_over_hostname", "preserve_hostname", "puppet", "random_seed", "reporting",
    "resize_rootfs", "resolv_conf", "rh_subscription", "rpi", "rsyslog", "runcmd", "salt_minion", "snap",
    "spacewalk", "ssh", "ssh_authorized_keys", "ssh_deletekeys", "ssh_fp_console_blacklist", "ssh_genkeytypes",
    "ssh_import_id", "ssh_key_console_blacklist", "ssh_keys", "ssh_publish_hostkeys", "ssh_pwauth",
    "ssh_quiet_keygen", "swap", "system_info", "timezone", "ubuntu_advantage", "ubuntu_pro", "updates", "user",
    "users", "vendor_data", "version", "wireguard", "write_files", "yum_repo_dir", "yum_repos", "zypper",
})  # fmt: skip
"""Names at the top of a cloud-config (its schema-cloud-config-v1.json)."""
_IGNORES: Final = "so cloud-init ignores it"
UNRECOGNISED: Final = (
    f"it begins with none of the words that cloud-init recognises (#cloud-config, #!, MIME-Version:, ...), {_IGNORES}"
)


def problem(text: str) -> str:
    """Return the reason why cloud-init ignores user-data, as a clause, or "" if there is none.

    Text that no cloud-init handler accepts counts only if it was evidently written for cloud-init. Quotes nothing of
    the text but names of MIME types, since it may contain secrets.
    """
    if not text.strip():
        return ""
    unzipped = _gunzipped(text)
    if unzipped is not None:
        return problem(unzipped) if unzipped[:2] != "\x1f\x8b" else ""
    if "mime-version:" in text[:_MIME_VERSION_WITHIN].lower():
        return _multipart(text) if len(text) <= MAX_BYTES else ""
    kind = _type_of(text)
    return _of_type(kind, text) if kind else _unrecognised(text)


def is_recognised(text: str) -> bool:
    """Return whether cloud-init has a handler for the text, judged by its beginning."""
    mime = "mime-version:" in text[:_MIME_VERSION_WITHIN].lower()
    return not text.strip() or mime or _gunzipped(text) is not None or bool(_type_of(text))


def _type_of(text: str) -> str:
    """Return the type of text by its first characters, or "" (`type_from_starts_with` in cloudinit/handlers)."""
    begins = text.lstrip()[:32].lower()
    return next((kind for header, kind in _HEADERS.items() if begins.startswith(header)), "")


def _gunzipped(text: str) -> str | None:
    """Return what Hegel's base64 of gzip holds (hegel.metadata), at most MAX_BYTES of it, or None if it is no gzip."""
    if not text.lstrip().startswith("H4sI"):
        return None
    try:
        content = zlib.decompressobj(wbits=31).decompress(base64.b64decode(text), MAX_BYTES + 1)
    except (ValueError, zlib.error):
        return None
    return content.decode(errors="replace")


def _of_type(kind: str, text: str) -> str:
    if kind == "text/jinja2":
        template = text.lstrip().partition("\n")[2]
        if _type_of(template) not in _RENDERED:
            return f"the line after `## template: jinja` is neither #cloud-config nor #!, {_IGNORES}"
        return ""
    if len(text) > MAX_BYTES:
        return ""
    if kind == "text/cloud-config":
        return _cloud_config(text)
    if kind == "text/cloud-config-archive":
        return _archive(text)
    if kind == "text/cloud-config-jsonp":
        return _json_patch(text)
    if kind.startswith("text/x-include"):
        lines = (re.sub(r"^#include(-once)?\s*", "", line, flags=re.IGNORECASE) for line in text.splitlines())
        return "" if any(line.strip() and line[0] != "#" for line in lines) else "it includes no URL"
    return ""


def _multipart(text: str) -> str:
    try:
        message = message_from_string(text)
        parts = list(_parts(message))
    except (MessageError, ValueError, LookupError, RecursionError) as error:
        return f"it cannot be read as MIME ({type(error).__name__}), {_IGNORES}"
    if not parts:
        return f"it is a MIME multi-part in which no part was found (boundary), {_IGNORES}"
    for number, (kind, payload) in enumerate(parts, start=1):
        if len(parts) == 1 and not message.is_multipart() and not _type_of(payload):
            return f"its MIME header is not at its beginning, {_IGNORES}"
        if payload and kind not in _TYPES:
            return f"part {number} has the type {kind[:64]!r}, which cloud-init does not handle"
        if payload and (wrong := _of_type(kind, payload)):
            return f"part {number}: {wrong}"
    return ""


def _parts(message: Message) -> Iterator[tuple[str, str]]:
    """Yield type and content of each part, as `_process_msg` in cloudinit/user_data.py sees them."""
    for number, part in enumerate(message.walk()):
        if part.get_content_maintype() == "multipart" or number > _MAX_PARTS:
            continue
        content: Any = part.get_payload(decode=True)
        payload = content if isinstance(content, bytes) else b""
        kind = part.get_content_type()
        if _GZIPPED.fullmatch(kind):
            payload, kind = zlib.decompressobj(wbits=31).decompress(payload, MAX_BYTES), "text/plain"
        decoded = payload.decode(errors="replace")
        yield (_type_of(decoded) or kind) if kind in _GUESSED else kind, decoded


def _cloud_config(text: str) -> str:
    loaded, wrong = _load(text)
    if wrong:
        return wrong
    header, _, rest = text.lstrip().partition("\n")
    if loaded is None and ":" in header and not rest.strip():
        return f"all of it is in its first line, which is a comment, {_IGNORES}"
    if loaded is not None and not isinstance(loaded, dict):
        return f"it is YAML, but no mapping of names to values, {_IGNORES}"
    return ""


def _archive(text: str) -> str:
    loaded, wrong = _load(text)
    if wrong:
        return wrong
    if loaded is not None and not isinstance(loaded, list | set):
        return f"it is YAML, but no list of parts, {_IGNORES}"
    for number, part in enumerate(loaded or (), start=1):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind and kind not in _TYPES | _GUESSED:
            return f"part {number} has the type {str(kind)[:64]!r}, which cloud-init does not handle"
    return ""


def _json_patch(text: str) -> str:
    try:
        patch = orjson.loads(text.lstrip()[len("#cloud-config-jsonp") :])
    except orjson.JSONDecodeError:
        patch = None
    return "" if isinstance(patch, list) else f"it is no list in JSON, {_IGNORES}"


class _MergeFoundError(Exception):
    """The text merges mappings (`<<`)."""


class _PyYaml(yaml.CSafeLoader):
    """PyYAML's values, which cloud-init's `yaml.safe_load` makes, of text without merges.

    PyYAML copies merged pairs into a list, so a short text of nested merges would take exponential time.
    """

    def flatten_mapping(self, node: Any) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise _MergeFoundError
        super().flatten_mapping(node)


def _load(text: str) -> tuple[Any, str]:
    """Return the value that cloud-init loads, if it is known, and the reason why it loads none, or "".

    `tink.api.yaml.read` bounds the work. Then PyYAML decides, because a value that a Kubernetes object cannot have may
    be fine for cloud-init (`.inf`), and the other way round (`2020-02-30`, an unknown tag).
    """
    try:
        documents = list(read(text, []))
    except YamlError as error:
        if isinstance(error.__cause__, yaml.YAMLError):
            return None, _no_yaml(error)
    else:
        if len(documents) > 1:
            return None, f"it has {len(documents)} YAML documents, of which cloud-init takes none"
    try:
        check_depth(text)
        if "\t" in text:
            _check_tabs(text)
        return yaml.load(text, _PyYaml), ""  # noqa: S506 - a safe loader
    except (YamlError, _MergeFoundError):
        return None, ""
    except yaml.constructor.ConstructorError as error:
        # Its message may quote what can be a secret: `password: !hunter2` has a tag.
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        what = (
            "a key is no scalar" if "unhashable" in str(error.problem) else "a value has a tag that cloud-init rejects"
        )
        return None, _no_yaml(YamlError(what, line))
    except yaml.YAMLError as error:
        return None, _no_yaml(as_yaml_error(error, text))
    except (ValueError, TypeError):  # Python's, of a number or a date; they quote the value
        return None, _no_yaml(YamlError("a number or date is invalid"))


def _check_tabs(text: str) -> None:
    """Raise yaml.YAMLError for a tab that libyaml takes as a space, and PyYAML's own scanner, cloud-init's, refuses."""
    for _ in yaml.scan(text, yaml.SafeLoader):
        pass


def _no_yaml(error: YamlError) -> str:
    where = f"line {error.line}: " if error.line else ""
    return f"it is no YAML, {where}{error}, {_IGNORES}"


def _unrecognised(text: str) -> str:
    """Return what is wrong with text that has no header, if it can have been written for nothing but cloud-init."""
    begins = text.lstrip()
    within = begins[_BEFORE_THE_HEADER.match(begins[:MAX_BYTES]).end() :]  # type: ignore[union-attr]
    if _MISSPELT.match(begins.removeprefix("\ufeff")):
        return f"its first line is not #cloud-config, {_IGNORES}"
    if re.match(r"#+\s*template:\s*jinja", begins, re.IGNORECASE):
        return f"its first line is not `## template: jinja`, {_IGNORES}"
    if begins.startswith("#upstart-job"):
        return "cloud-init handles no #upstart-job any more"
    if _type_of(within):
        return f"it does not begin with its first line ({within.split(maxsplit=1)[0][:13]}), {_IGNORES}"
    if re.match(r"content-type:\s*multipart/", begins, re.IGNORECASE):
        return f"it has no `MIME-Version: 1.0`, {_IGNORES}"
    if _BASE64.fullmatch(begins[:MAX_BYTES]) and _is_encoded(begins):
        return f"it is base64, which nothing decodes, {_IGNORES}"
    return _nameless(begins, within)


def _is_encoded(text: str) -> bool:
    letters = "".join(text[:MAX_BYTES].split())[:64]
    try:
        decoded = base64.b64decode(letters[: len(letters) // 4 * 4]).decode(errors="replace")
    except ValueError:
        return False
    return bool(_type_of(decoded)) or decoded.lower().startswith(("mime-version:", "content-type:"))


def _nameless(text: str, within: str) -> str:
    if len(text) > MAX_BYTES or re.split(r"[:\s]", within.lstrip('{ "'), maxsplit=1)[0].rstrip('"') not in _WORDS:
        return ""
    try:
        found = list(read(text, []))
    except YamlError:
        return ""
    if len(found) == 1 and isinstance(found[0], dict) and found[0].keys() <= _WORDS:
        return f"its first line has to be #cloud-config, {_IGNORES}"
    return ""
