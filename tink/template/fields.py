"""Render a Template resource for one machine: the data that templates see, and the actions that a Workflow will run.

Every string field is rendered on its own, never as part of a YAML text. So quotes, colons, newlines and braces in a
Hardware or a parameter appear in that field, unchanged, and nowhere else. An error names the field:
`spec.actions[1].env[DEST_DISK]`. The Template's own env and volumes are rendered once and merged into every action; the
action's values win: environment variables by name, volumes by their path in the container (CRD refactor proposal,
TemplateSpec).

The data:

- `.Hardware`: the spec as the Go struct `v1alpha2.HardwareSpec`, under Go field names (`.Hardware.StorageDevices`,
  `.Hardware.OSIE.Name`). An absent field has Go's zero value, and an unknown field is an error. `.Hardware.Disks` is an
  alias of StorageDevices, as templates of v1alpha1 wrote.
- `.hardware`: the same data under JSON names, as in the manifest (an absent field is a missing key), with `metadata`,
  `spec` and `status` of the whole object and the alias `disks`. `.hardware.status.inventory` describes the machine.
- `.Params`: the Workflow's templateParams. `.Param` is the same map under the name that Tink's renderer uses.

The tables are the Go structs of the CRD refactor proposal; a test compares them with `tink.api.v1alpha2`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tink.api.v1alpha2 import Raw
from tink.golang.strconv import INT64_MIN, UINT64_MAX, byte_length
from tink.golang.values import Struct, Value
from tink.template.compile import RenderBudget, check, render
from tink.template.errors import TemplateError, TemplateSyntaxError

_MAX_DEPTH: Final = 64

_Convert = Callable[[Any, str], Value]
"""Converts JSON (None: absent) at a path to a value. Raises TemplateError for a wrong type."""


@dataclass(frozen=True)
class GoStruct:
    """A Go struct type: its fields in order, each with its JSON name and its type."""

    name: str
    fields: tuple[tuple[str, str, _Convert | GoStruct | MapOf], ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, raw: Any, path: str) -> Struct:
        members = _object(raw, path)
        values = {
            name: convert(members.get(json_name), f"{path}.{json_name}") for name, json_name, convert in self.fields
        }
        return Struct(self.name, values, {alias: values[target] for alias, target in self.aliases.items()})


@dataclass(frozen=True)
class MapOf:
    """A Go map with strings as keys."""

    element: GoStruct

    def __call__(self, raw: Any, path: str) -> Value:
        members = _object(raw, path)
        return {expected(str, key, path): self.element(value, f"{path}[{key}]") for key, value in members.items()}


_JSON_TYPES: Final = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "nothing",
}


def expected(wanted: type, raw: Any, path: str) -> Any:
    """Return the raw value if it has exactly this type. Raises TemplateError, which names the path."""
    if type(raw) is not wanted:
        found = _JSON_TYPES.get(type(raw), type(raw).__name__)
        raise TemplateError(f"{path}: want {_JSON_TYPES[wanted]}, found {found}", name=path)
    return raw


def _object(raw: Any, path: str) -> dict[str, Any]:
    """Return an object; an empty one if it is absent."""
    members: dict[str, Any] = {} if raw is None else expected(dict, raw, path)
    return members


def _zero_or(zero: Value) -> _Convert:
    """Return a converter for a scalar with a zero value."""
    return lambda raw, path: zero if raw is None else expected(type(zero), raw, path)


def _strings(raw: Any, path: str) -> Value:
    return [expected(str, item, f"{path}[{index}]") for index, item in enumerate(expected(list, raw or [], path))]


_string = _zero_or("")
_bool = _zero_or(False)
_int = _zero_or(0)

LOCAL_OBJECT_REFERENCE: Final = GoStruct("v1.LocalObjectReference", (("Name", "name", _string),))
DHCP_V6: Final = GoStruct(
    "v1alpha2.DHCPv6",
    (("Address", "address", _string), ("PrefixLength", "prefixLength", _int), ("Nameservers", "nameservers", _strings)),
)
DHCP: Final = GoStruct(
    "v1alpha2.DHCP",
    (
        ("IP", "ip", _string),
        ("Netmask", "netmask", _string),
        ("Gateway", "gateway", _string),
        ("Hostname", "hostname", _string),
        ("VLANID", "vlanId", _string),
        ("Nameservers", "nameservers", _strings),
        ("Timeservers", "timeservers", _strings),
        ("LeaseTimeSeconds", "leaseTimeSeconds", _int),
        ("IPv6", "ipv6", DHCP_V6),
    ),
)
NETWORK_INTERFACE: Final = GoStruct(
    "v1alpha2.NetworkInterface",
    (("DHCP", "dhcp", DHCP), ("DisableDHCP", "disableDhcp", _bool), ("DisableNetboot", "disableNetboot", _bool)),
)
# Content and URL are pointers in Go; here they are their strings, "" for nil.
IPXE: Final = GoStruct("v1alpha2.IPXE", (("Content", "inline", _string), ("URL", "url", _string)))
INSTANCE: Final = GoStruct(
    "v1alpha2.Instance", (("Userdata", "userdata", _string), ("Vendordata", "vendordata", _string))
)
HARDWARE_SPEC: Final = GoStruct(
    "v1alpha2.HardwareSpec",
    (
        ("NetworkInterfaces", "networkInterfaces", MapOf(NETWORK_INTERFACE)),
        ("IPXE", "ipxe", IPXE),
        ("OSIE", "osie", LOCAL_OBJECT_REFERENCE),
        ("KernelParams", "kernelParams", _strings),
        ("Instance", "instance", INSTANCE),
        ("StorageDevices", "storageDevices", _strings),
        ("BMCRef", "bmcRef", LOCAL_OBJECT_REFERENCE),
    ),
    aliases={"Disks": "StorageDevices"},
)


def build_context(hardware: Raw, params: Mapping[str, str]) -> dict[str, Value]:
    """Return the data for a Template, from a Hardware as the API serves it and a Workflow's templateParams.

    Raises TemplateError, naming the field, if the Hardware does not fit its schema.
    """
    metadata = plain_value(_object(hardware.get("metadata"), "metadata"), "metadata", 0)
    spec = plain_value(_object(hardware.get("spec"), "spec"), "spec", 0)
    status = plain_value(_object(hardware.get("status"), "status"), "status", 0)
    as_json = {**spec, "metadata": metadata, "spec": spec, **({"status": status} if status else {})}
    if "storageDevices" in spec:
        as_json["disks"] = spec["storageDevices"]
    given = {
        expected(str, key, "templateParams"): expected(str, value, f"templateParams[{key}]")
        for key, value in params.items()
    }
    return {"Hardware": HARDWARE_SPEC(spec, "spec"), "hardware": as_json, "Params": given, "Param": given}


def plain_value(raw: Any, path: str, depth: int = 0) -> Value:
    """Return a copy that consists of JSON-like values only. Raises TemplateError for any other value."""
    if depth > _MAX_DEPTH:
        raise TemplateError(f"{path}: nested deeper than {_MAX_DEPTH}", name=path)
    if raw is None or type(raw) in (str, bool, float):
        return raw
    if type(raw) is int:
        if not INT64_MIN <= raw <= UINT64_MAX:
            raise TemplateError(f"{path}: the number has more than 64 bits", name=path)
        return raw
    if type(raw) is list:
        return [plain_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(raw)]
    if type(raw) is dict:
        return {expected(str, key, path): plain_value(value, f"{path}.{key}", depth + 1) for key, value in raw.items()}
    raise TemplateError(f"{path}: {type(raw).__name__} is no JSON value", name=path)


MAX_RESULT_BYTES: Final = 1 << 20
"""Maximum bytes of all rendered actions together. They must fit into a Workflow's status, which Kubernetes limits."""


def render_actions(template: Raw, hardware: Raw, params: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the actions of a Template for a Hardware and a Workflow's templateParams, as dicts with the API's JSON
    names.

    `name`, `timeout` and `reboots` are copied. Keys and values of env are both templates. Raises TemplateError, whose
    `name` is the path of the field, in these cases:

    - a template fails, or a field has the wrong type
    - two keys or two volumes of one map or list become the same
    - an image, a volume or a variable's name becomes empty
    - a field holds text that no container can be given
    - the result is too large
    """
    return _Rendering(build_context(hardware, params)).actions(_spec(template))


def render_text(text: str, hardware: Raw, params: Mapping[str, str], name: str) -> str:
    """Return a text outside of a Template, such as a URL, rendered with the data of a Template. Errors name it `name`.

    Raises TemplateError.
    """
    return render(text, build_context(hardware, params), name)


def parse_fields(template: Raw) -> list[TemplateSyntaxError]:
    """Return the syntax errors in a Template, one for each wrong field, without rendering. For admission."""
    errors = []
    for path, text in _texts(_spec(template)):
        try:
            check(text, path)
        except TemplateSyntaxError as error:
            errors.append(error)
    return errors


def _spec(template: Raw) -> dict[str, Any]:
    spec: dict[str, Any] = expected(dict, template.get("spec"), "spec")
    return spec


def _texts(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every field that is a template, with its path. The schema checks that they are strings."""
    owners = [(spec, "spec")]
    actions = spec.get("actions")
    if isinstance(actions, list):
        owners += [
            (action, f"spec.actions[{index}]") for index, action in enumerate(actions) if isinstance(action, dict)
        ]
    for owner, path in owners:
        found: list[tuple[str, Any]] = []
        if path != "spec":
            found += [(f"{path}.{key}", owner.get(key)) for key in ("image", "cmd", "networkNamespace", "pidNamespace")]
        for key in ("args", "volumes"):
            items = owner.get(key)
            if isinstance(items, list):
                found += [(f"{path}.{key}[{index}]", item) for index, item in enumerate(items)]
        env = owner.get("env")
        if isinstance(env, dict):
            for name, value in env.items():
                found += [(f"{path}.env[{name}]", name), (f"{path}.env[{name}]", value)]
        yield from ((place, text) for place, text in found if isinstance(text, str))


class _Rendering:
    """The rendering of one Template with one set of values. All fields share a budget."""

    def __init__(self, context: dict[str, Value]) -> None:
        self._context = context
        self._budget = RenderBudget()
        self._size = 0

    def actions(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        env = self._env(spec.get("env"), "spec.env")
        volumes = self._volumes(spec.get("volumes"), "spec.volumes")
        return [
            self._action(expected(dict, action, f"spec.actions[{index}]"), f"spec.actions[{index}]", env, volumes)
            for index, action in enumerate(expected(list, spec.get("actions"), "spec.actions"))
        ]

    def _action(
        self, action: Mapping[str, Any], path: str, env: Mapping[str, str], volumes: Mapping[str, str]
    ) -> dict[str, Any]:
        rendered: dict[str, Any] = {"name": expected(str, action.get("name"), f"{path}.name")}
        rendered["image"] = self._required(action.get("image"), f"{path}.image", "an image")
        if action.get("cmd") is not None:
            rendered["cmd"] = self._text(action["cmd"], f"{path}.cmd")
        if action.get("args") is not None:
            args = expected(list, action["args"], f"{path}.args")
            rendered["args"] = [self._text(arg, f"{path}.args[{index}]") for index, arg in enumerate(args)]
        merged_env = {**env, **self._env(action.get("env"), f"{path}.env")}
        if merged_env:
            rendered["env"] = merged_env
        own = self._volumes(action.get("volumes"), f"{path}.volumes")
        merged_volumes = [volume for target, volume in volumes.items() if target not in own] + list(own.values())
        if merged_volumes:
            rendered["volumes"] = merged_volumes
        for key in ("networkNamespace", "pidNamespace"):
            if action.get(key) is not None:
                rendered[key] = self._text(action[key], f"{path}.{key}")
        if action.get("timeout") is not None:
            rendered["timeout"] = expected(int, action["timeout"], f"{path}.timeout")
        if action.get("reboots") is not None:
            rendered["reboots"] = expected(bool, action["reboots"], f"{path}.reboots")
        for value in rendered.values():
            if isinstance(value, dict):
                self._size += sum(byte_length(name) + byte_length(text) for name, text in value.items())
            elif isinstance(value, list):
                self._size += sum(map(byte_length, value))
            elif isinstance(value, str):
                self._size += byte_length(value)
        if self._size > MAX_RESULT_BYTES:
            raise TemplateError(f"{path}: the rendered actions are larger than {MAX_RESULT_BYTES} bytes", name=path)
        return rendered

    def _env(self, raw: Any, path: str) -> dict[str, str]:
        rendered: dict[str, str] = {}
        for name, value in expected(dict, {} if raw is None else raw, path).items():
            place = f"{path}[{name}]"
            key = self._required(name, place, "the name of a variable")
            if "=" in key:
                raise TemplateError(f"{place}: the name of a variable must not hold '=', got {key!r}", name=place)
            if key in rendered:
                raise TemplateError(f"{place}: another variable renders to the same name, {key!r}", name=place)
            rendered[key] = self._text(value, place)
        return rendered

    def _volumes(self, raw: Any, path: str) -> dict[str, str]:
        """Return the rendered volumes by their paths in the container."""
        rendered: dict[str, str] = {}
        for index, item in enumerate(expected(list, [] if raw is None else raw, path)):
            place = f"{path}[{index}]"
            volume = self._required(item, place, "a volume")
            # SOURCE:TARGET[:OPTIONS], or TARGET for an anonymous volume.
            parts = volume.split(":")
            target = posixpath.normpath(parts[1] if len(parts) > 1 else parts[0])
            if target in rendered:
                raise TemplateError(f"{place}: {rendered[target]!r} is mounted on {target}, too", name=place)
            rendered[target] = volume
        return rendered

    def _required(self, raw: Any, path: str, what: str) -> str:
        text = self._text(raw, path)
        if not text.strip():
            raise TemplateError(f"{path}: renders to nothing, but must be {what}", name=path)
        return text

    def _text(self, raw: Any, path: str) -> str:
        text = render(expected(str, raw, path), self._context, path, self._budget)
        if "\0" in text:
            raise TemplateError(f"{path}: renders to text with a NUL byte, which no container can be given", name=path)
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise TemplateError(f"{path}: renders to bytes that are no UTF-8", name=path)
        return text
