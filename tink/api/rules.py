"""CEL rules for single objects of our resources, with the messages that users see.

The models name the rules beside their fields. `tink.api.schema` copies them into the CustomResourceDefinitions, and the
API server enforces them: the operator's kube-apiserver and the embedded one alike. The models themselves stay lenient,
because objects that are older than a rule must still be readable.

One mistake gives one message. So a field with a rule has no `pattern` in its schema, whose message would only quote the
expression, and a rule that compares fields is true for fields that are invalid by themselves. A field of a Template
with a template expression can't be checked before it is rendered.

The maxima (`maxLength`, `maxItems`, `maxProperties`; `tink.api.bounds`) keep the estimated cost of the rules within the
budget of Kubernetes, which counts the longest list of the longest strings (k8s.io/apiserver, pkg/cel). The regular
expressions are those of `tink.api.patterns`. CEL's `matches` is RE2: linear in its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic.config import JsonDict

from tink.api import patterns

Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]
"""FieldValueDuplicate is missing: with it, Kubernetes writes "Duplicate value" and drops the message."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `x-kubernetes-validations` (Kubernetes, "Validation rules").

    `cel` is true for good values of `self`. A rule with `oldSelf` is evaluated for updates only. `say` is a CEL
    expression that returns a message with the values in it; `message` is used if that fails. `field` is the path of the
    field that the error names, relative to the rule.
    """

    cel: str
    message: str
    say: str = ""
    reason: Reason = "FieldValueInvalid"
    field: str = ""

    def entry(self) -> JsonDict:
        """Return the rule as it is written in a schema."""
        entry: JsonDict = {"rule": self.cel, "message": self.message}
        if self.say:
            entry["messageExpression"] = self.say
        if self.reason != "FieldValueInvalid":
            entry["reason"] = self.reason
        if self.field:
            entry["fieldPath"] = self.field
        return entry


def checked(*rules: Rule, **bounds: int) -> JsonDict:
    """Return `json_schema_extra` for a field or a model: its rules, and its maxima under their JSON Schema names."""
    extra: JsonDict = dict(bounds)
    if rules:
        extra["x-kubernetes-validations"] = [rule.entry() for rule in rules]
    return extra


IPV4 = Rule(f"self.matches('{patterns.IPV4}')", "must be an IPv4 address, such as 192.168.1.10")
IPV6 = Rule(
    f"self.matches('{patterns.IPV6}')",
    "must be an IPv6 address in lower case without zone and prefix, such as 2001:db8::10",
)
UNICAST_IPV6 = Rule(
    f"!self.matches('{patterns.NO_UNICAST_IPV6}')",
    "must be an address that routers know: not link-local, multicast, :: or ::1",
)
NETMASK = Rule(
    f"self.matches('{patterns.NETMASK}')",
    "must be an IPv4 netmask: ones, then zeros, in dotted form, such as 255.255.255.0",
)
HOSTNAME = Rule(
    f"self.matches('{patterns.HOSTNAME}')",
    "must be a host name (RFC 1123): letters, digits and '-', with dots between parts of at most 63 characters",
)
SERVER = Rule(
    # What looks like an address must be one: 10.0.0.256 is no name.
    f"self.matches('{patterns.LIKE_AN_ADDRESS}') "
    f"? self.matches('{patterns.IPV4}') : self.matches('{patterns.HOSTNAME}')",
    "must be an IPv4 address or a host name, such as 192.168.1.1 or ntp.example.org",
)
VLAN = Rule(
    f"self.matches('{patterns.VLAN}') && int(self) <= {patterns.MAX_VLAN}",
    f'must be a VLAN ID from 1 to {patterns.MAX_VLAN}, such as "100"',
)

MAC_KEYS = Rule(
    f"self.all(mac, mac.matches('{patterns.MAC}'))",
    "the keys must be MAC addresses in lower case with colons, such as 52:54:00:12:34:56",
    say="'the keys must be MAC addresses in lower case with colons, such as 52:54:00:12:34:56, which \"' + "
    f"self.filter(mac, !mac.matches('{patterns.MAC}'))[0] + '\" is not'",
)
# Octet by octet of ip, netmask m and gateway: an address is in the block a / (256 - m). 256 - 255 is 1, one address a
# block, and 256 - 0 is one block of all. Most octets are masked out or equal, and need no division. (Octets are not
# compared as text: parts of a text have no bound, so the estimate of the cost would have none.)
_BLOCK = "int({0}[i]) / (256 - int(m[i]))"
_SUBNET = (
    "[self.ip.split('.')].all(a, [self.netmask.split('.')].all(m, [self.gateway.split('.')].all(g, [0, 1, 2, 3].all(i, "
    f"m[i] == '0' || int(a[i]) == int(g[i]) || {_BLOCK.format('a')} == {_BLOCK.format('g')}))))"
)
# `||` needs no order: where _SUBNET holds, nothing else is looked at; where a field is missing or wrong by itself,
# _SUBNET fails or has no value, and what follows decides.
GATEWAY_IN_SUBNET = Rule(
    "!has(self.gateway) || !has(self.ip) || !has(self.netmask) || "
    f"{_SUBNET} || self.netmask == '255.255.255.255' || "
    f"!self.ip.matches('{patterns.IPV4}') || !self.gateway.matches('{patterns.IPV4}') "
    f"|| !self.netmask.matches('{patterns.NETMASK}')",
    "must be in the subnet that ip and netmask give",
    say="'must be in the subnet of ip ' + self.ip + ' with netmask ' + self.netmask + ', which ' + self.gateway + "
    "' is not'",
    field=".gateway",
)

SOME_SCRIPT = Rule(
    "(has(self.inline) && self.inline != '') || (has(self.url) && self.url != '')",
    "give inline or url, or leave ipxe out",
    reason="FieldValueRequired",
)
HTTP_URL = Rule(
    f"self == '' || self.matches(r'{patterns.HTTP_URL}')",
    "must be an http:// or https:// URL without spaces, such as http://192.168.1.1/script.ipxe",
)
ARTIFACT_URL = Rule(
    f"self.matches(r'{patterns.ARTIFACT_URL}')",
    "must be an http://, https:// or file:/// URL without spaces, such as http://192.168.1.1/osie/vmlinuz",
)
KERNEL_PARAM = Rule(
    f"!self.matches(r'{patterns.ENDS_IPXE_COMMAND}')",
    "must not hold a line break, another control character, or the words &&, ||, ; or #..., which end a command in "
    "iPXE",
)
DEVICE_PATH = Rule(
    f"self.matches(r'{patterns.DEVICE_PATH}')", "must be an absolute Linux path without spaces, such as /dev/sda"
)
WHOLE_DISK = Rule(
    f"!self.matches('{patterns.PARTITION}')",
    "must be a whole disk, not a partition: /dev/sda rather than /dev/sda1, /dev/nvme0n1 rather than /dev/nvme0n1p1, "
    "/dev/disk/by-id/NAME rather than /dev/disk/by-id/NAME-part1",
)

OBJECT_NAME = Rule(
    f"self == '' || self.matches('{patterns.OBJECT_NAME}')",
    "must be the name of an object: lower case letters, digits, '-' and '.'",
)
NAMES_HARDWARE = Rule(
    "has(self.name) && self.name != ''",
    "name the Hardware that the Workflow is to run on",
    reason="FieldValueRequired",
    field=".name",
)
NAMES_TEMPLATE = Rule(
    "has(self.name) && self.name != ''",
    "name the Template that gives the Workflow's actions",
    reason="FieldValueRequired",
    field=".name",
)

ACTION_NAME = Rule(
    "!self.contains('{{')",
    "must be the name itself: names of actions are not rendered, so that they are unique before and after",
)
IMAGE = Rule(
    "self.contains('{{') || !self.matches(r'" + patterns.SPACE + "')",
    "must be an OCI image without spaces, such as registry.example.org/actions/image2disk:v1",
)
VOLUME = Rule(
    "self.contains('{{') || self.matches(r'" + patterns.VOLUME + "')",
    "must be SRC:TARGET or SRC:TARGET:OPTIONS, SRC an absolute path or the name of a volume, TARGET an absolute path "
    "in the container below /, such as /etc/data:/data:ro",
)
ENV_NAMES = Rule(
    "self.all(name, name != '' && (name.contains('{{') || !name.contains('=')))",
    "the names of variables must not be empty and must not hold '='",
)

_LEFT = "has(oldSelf.status) && has(oldSelf.status.state) && oldSelf.status.state != 'Pending'"


def _fixed(field: str, same: str) -> Rule:
    return Rule(
        f"!({_LEFT}) || {same}",
        f"{field} can't be changed once the Workflow has left Pending: create another Workflow",
        say=f"'{field} can\\'t be changed once the Workflow has left Pending (it is ' + oldSelf.status.state + "
        "'): create another Workflow'",
        reason="FieldValueForbidden",
        field=f".spec.{field}",
    )


FIXED_HARDWARE = _fixed("hardwareRef", "self.spec.hardwareRef == oldSelf.spec.hardwareRef")
FIXED_HARDWARE_OF_BOOT = Rule(
    # Without a second message for a Workflow that has left Pending: FIXED_HARDWARE covers that one.
    f"({_LEFT}) || !has(oldSelf.status) || !has(oldSelf.status.boot) || !has(oldSelf.status.boot.way) || "
    "self.spec.hardwareRef == oldSelf.spec.hardwareRef",
    "hardwareRef can't be changed once BMC control boots the machine: delete the Workflow and create another",
    reason="FieldValueForbidden",
    field=".spec.hardwareRef",
)
FIXED_TEMPLATE = _fixed("templateRef", "self.spec.templateRef == oldSelf.spec.templateRef")
FIXED_PARAMS = _fixed(
    "templateParams",
    "has(self.spec.templateParams) == has(oldSelf.spec.templateParams) && "
    "(!has(self.spec.templateParams) || self.spec.templateParams == oldSelf.spec.templateParams)",
)
FIXED_BOOT_OPTIONS = Rule(
    "has(self.spec.bootOptions) == has(oldSelf.spec.bootOptions) && "
    "(!has(self.spec.bootOptions) || self.spec.bootOptions == oldSelf.spec.bootOptions)",
    "bootOptions can't be changed: create another Workflow",
    reason="FieldValueForbidden",
    field=".spec.bootOptions",
)
NAMES_PREPARING_ACTIONS = Rule(
    "!has(self.bootMode) || self.bootMode != 'customboot' || (has(self.custombootConfig) && "
    "has(self.custombootConfig.preparingActions) && size(self.custombootConfig.preparingActions) > 0)",
    "name the actions of the BMC for bootMode customboot",
    reason="FieldValueRequired",
    field=".custombootConfig.preparingActions",
)
ENDED_STAYS_ENDED = Rule(
    "!has(oldSelf.state) || !(oldSelf.state in ['Succeeded', 'Failed', 'Canceled']) || "
    "(has(self.state) && self.state == oldSelf.state)",
    "a Workflow that has ended does not change its state: create another Workflow",
    reason="FieldValueForbidden",
    field=".state",
)

# --- bmc.tinkerbell.org -----------------------------------------------------------------------------------------------

FINGERPRINT = Rule(
    f"self.matches('{patterns.FINGERPRINT}')",
    "must be the SHA-256 of a certificate: 64 hex digits, with or without colons",
)
NAMES_ACTION = Rule(
    "has(self.powerAction) || has(self.bootDevice) || has(self.virtualMediaAction) || "
    "has(self.oneTimeBootDeviceAction)",
    "name one action: powerAction, bootDevice, virtualMediaAction or oneTimeBootDeviceAction",
    reason="FieldValueRequired",
)
NAMES_BOOT_DEVICE = Rule(
    "has(self.device)",
    "name a boot device: pxe, disk, bios, cdrom or safe",
    reason="FieldValueRequired",
    field=".device",
)
_URL_OR_TEMPLATE = f"self == '' || self.contains('{{{{') || self.matches(r'{patterns.HTTP_URL}')"
ISO_URL = Rule(
    _URL_OR_TEMPLATE,
    "must be an http:// or https:// URL without spaces, such as http://192.168.1.1/boot.iso",
)
MEDIA_URL = Rule(
    _URL_OR_TEMPLATE,
    "must be an http:// or https:// URL without spaces, such as http://192.168.1.1/boot.iso, or empty to eject",
)
