"""Template: v1alpha1's text and v1alpha2's actions.

A v1alpha1 Template is one text, which need not be YAML before it is rendered. Nothing is translated that counts: the
v1alpha2 object keeps the text in an annotation, with a hash of its actions. While the actions have that hash, the
text is the Template. It comes back byte for byte, and `text_of` gives it to the controller, which renders it as
Tinkerbell does (`tink.versions.rendering`). When a client changes the actions in v1alpha2, they are the Template, and
the text of the v1alpha1 view is made of them.

The actions beside a text are for people: `tinkedge convert` makes them (`tink.convert.v1alpha1`), as far as it can.
Where it refuses a text, the object has one placeholder action, whose name and image say so, and INCOMPLETE_ANNOTATION
has the reason. A text of more than MAX_SHOWN_CHARACTERS has the placeholder as well, because the conversion takes too
long.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import sys
import zlib
from functools import lru_cache
from io import StringIO
from typing import Any, Final

import orjson
import yaml

from tink.api.annotations import INCOMPLETE_ANNOTATION, TEMPLATE_TEXT_ANNOTATION
from tink.api.v1alpha2 import Raw, as_mapping
from tink.convert.findings import FindingKind, Findings, ObjectPlace
from tink.convert.v1alpha1 import actions_of
from tink.errors import TinkedgeError
from tink.limits import RecentlyUsed, shrink_to_fit
from tink.printable import printable
from tink.versions.residue import MISSING, Kind

MAX_PLAIN_BYTES: Final = 64 << 10
"""Maximum bytes of a text that is kept as it is. A longer one is compressed."""
MAX_TEXT_BYTES: Final = 3 << 20
"""Maximum bytes of a text after decompression: the maximum of an API request."""
MAX_SHOWN_CHARACTERS: Final = 32 << 10
"""Maximum length of a text whose actions are shown. It takes some 10 ms, and 0.3 s if it is one error after another."""
MAX_INCOMPLETE_CHARACTERS: Final = 1024
MAX_KNOWN_BYTES: Final = 4 << 20
"""Maximum memory of the texts that were converted last, with their actions."""
_ENTRY_BYTES: Final = 1500
"""Approximate memory of such a text besides text and actions, with the longest reason."""

_MARK: Final = "actions sha256:"
_GZIP: Final = " gzip"
_HEADER: Final = "# The actions of the v1alpha2 Template. sha256 of the text below: "
_SOURCE: Final = ObjectPlace("", 0, "Template")
_NAME: Final = "template"
_PANICS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that a converter does not raise. If one does, only the actions of this Template are not shown."""
_PLACEHOLDER: Final = {
    "actions": [
        {
            "name": "no-actions-see-annotation-v1alpha1-incomplete",
            "image": "v1alpha1-template.invalid/no-actions:see-annotation-v1alpha1-incomplete",
        }
    ]
}
"""The actions of a Template whose text has none that v1alpha2 can show. No registry has the image (RFC 2606)."""
_NO_TEXT: Final = "spec.actions: spec.data of the v1alpha1 Template is absent or no text, so there is nothing to run"
_UNREADABLE: Final = "spec.actions: the text of the v1alpha1 Template counts, and can't be shown as actions: "


def text_of(template: Raw) -> str | None:
    """Return the v1alpha1 text that a v1alpha2 Template was made of, which is then the Template that counts.

    None if there is none, or if the actions were changed in v1alpha2 since then: they count. Raises nothing.
    """
    annotations = as_mapping(as_mapping(template.get("metadata")).get("annotations"))
    return _matching_text(annotations.get(TEMPLATE_TEXT_ANNOTATION), template.get("spec"))


def _matching_text(kept: Any, spec: Any) -> str | None:
    """Return the text in an annotation if it belongs to these actions."""
    if not isinstance(kept, str) or not kept.startswith(_MARK):
        return None
    mark, _, text = kept.partition("\n")
    if mark.removesuffix(_GZIP) != _MARK + _digest(spec):
        return None
    return _decompressed(text) if mark.endswith(_GZIP) else text


def _kept(text: str, spec: Raw) -> str:
    """Return the annotation that keeps a text beside its actions."""
    mark = _MARK + _digest(spec)
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_PLAIN_BYTES:
        return f"{mark}\n{text}"
    compressor = zlib.compressobj(9, wbits=31)
    return f"{mark}{_GZIP}\n{base64.b64encode(compressor.compress(data) + compressor.flush()).decode()}"


def _decompressed(text: str) -> str | None:
    try:
        data = zlib.decompressobj(wbits=31).decompress(base64.b64decode(text, validate=True), MAX_TEXT_BYTES + 1)
        return data.decode("utf-8", "surrogatepass") if len(data) <= MAX_TEXT_BYTES else None
    except (binascii.Error, ValueError, zlib.error):
        return None


def _digest(spec: Any) -> str:
    """Return a hash of a spec. It depends on the order of actions, but not on that of fields."""
    try:
        text = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer of more than 64 bits, or half of a surrogate pair
        try:
            text = json.dumps(spec, sort_keys=True).encode()
        except (RecursionError, TypeError, ValueError):
            return ""
    return hashlib.sha256(text).hexdigest()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# --- v1alpha1 to v1alpha2 ---------------------------------------------------------------------------------------------


class _KeptText(dict[str, Any]):
    """A v1alpha1 view whose text was kept in the v1alpha2 view `source`, which `up` returns without a conversion.

    To convert a text takes some ms, and each reading of a Template compares its view with the stored object. The hash
    proves that the actions are those of this text.
    """

    def __init__(self, text: str, source: Raw) -> None:
        super().__init__(spec={"data": text})
        self.source = source


class WrittenText(dict[str, Any]):
    """A v1alpha1 view whose text `down` has written, and the value that the text has in YAML; None if it must be read.

    To read the text takes longer than to write it.
    """

    def __init__(self, text: str, body: Raw | None) -> None:
        super().__init__(spec={"data": text})
        self.body = body


def up(view: Raw, _metadata: Raw) -> Raw:
    """Return the v1alpha2 view of a v1alpha1 view."""
    if isinstance(view, _KeptText):
        return view.source
    text = as_mapping(view.get("spec")).get("data")
    if not isinstance(text, str):
        return {"spec": _copy(_PLACEHOLDER), "annotations": {INCOMPLETE_ANNOTATION: _NO_TEXT}}
    found, problem = _shown(text, view.body if isinstance(view, WrittenText) else None)
    spec: Raw = orjson.loads(found)
    annotations = {}
    if problem or not _is_written(text):
        annotations[TEMPLATE_TEXT_ANNOTATION] = _kept(text, spec)
    if problem:
        annotations[INCOMPLETE_ANNOTATION] = problem
    return {"spec": spec, **({"annotations": annotations} if annotations else {})}


_shown_texts: Final = RecentlyUsed[str, tuple[bytes, str]](MAX_KNOWN_BYTES)


def _shown(text: str, body: Raw | None) -> tuple[bytes, str]:
    """Return the actions that show a text as JSON, and the reason if it has none: one sentence of one line.

    `body` is the value of the text if it is known without reading the text.
    """
    if len(text) > MAX_SHOWN_CHARACTERS:
        problem = f"it has {len(text)} characters, more than {MAX_SHOWN_CHARACTERS}"
        return orjson.dumps(_PLACEHOLDER), f"{_UNREADABLE}{problem}"
    found = _shown_texts.get(text)
    if found is None:
        found = _converted(text, body)
        _shown_texts.put(text, found, sys.getsizeof(text) + sys.getsizeof(found[0]) + _ENTRY_BYTES)
    return found


def _converted(text: str, body: Raw | None) -> tuple[bytes, str]:
    findings = Findings(_SOURCE)
    try:
        spec = actions_of(text, _NAME, findings, body)
        if spec is not None:
            return shrink_to_fit(orjson.dumps(spec)), ""
        problem = next((f"{each.path}: {each.reason}" for each in findings if each.kind is FindingKind.ERROR), "")
    except (TinkedgeError, *_PANICS) as error:
        problem = str(error) or type(error).__name__
    sentence = printable(" ".join(f"{_UNREADABLE}{problem}".split()))
    return orjson.dumps(_PLACEHOLDER), sentence[:MAX_INCOMPLETE_CHARACTERS]


def _is_written(text: str) -> bool:
    """Return True if `down` has made the text of v1alpha2's actions, and no client has changed it. It is not kept."""
    header, _, rest = text.partition("\n")
    return header.startswith(_HEADER) and header == _header(rest)


def _copy(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


# --- v1alpha2 to v1alpha1 ---------------------------------------------------------------------------------------------


def down(view: Raw, _metadata: Raw) -> Raw:
    """Return the v1alpha1 view of a v1alpha2 view."""
    spec, annotations = view.get("spec"), as_mapping(view.get("annotations"))
    text = _matching_text(annotations.get(TEMPLATE_TEXT_ANNOTATION), spec)
    if text is None:
        return written(spec) or {}
    if annotations.keys() == {TEMPLATE_TEXT_ANNOTATION} and spec != _PLACEHOLDER:
        return _KeptText(text, {"spec": spec, "annotations": annotations})
    return {"spec": {"data": text}}


_EXPRESSION: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_PARAM: Final = re.compile(r"(?<![\w)\]])\.Params?\.(?!(?:Hardware|hardware|references|Params?)\b)(?=[^\W\d])")
_DISKS: Final = re.compile(r"\.Hardware\.StorageDevices\b")


def _old_expression(match: re.Match[str]) -> str:
    """Return an expression of v1alpha2 with the names that the same data have in v1alpha1."""
    return _DISKS.sub(".Hardware.Disks", _PARAM.sub(".", match[0]))


def _old_text(text: str) -> str:
    return _EXPRESSION.sub(_old_expression, text) if "{{" in text else text


def written(spec: Any) -> WrittenText | None:
    """Return a v1alpha1 text with the actions of a v1alpha2 spec; None if it has none. `cmd` has no place there.

    Fields of another type than v1alpha2's are left out.
    """
    if not isinstance(spec, dict) or spec == _PLACEHOLDER or not isinstance(spec.get("actions"), list):
        return None
    task: Raw = {"name": _NAME, "worker": "{{.device_1}}", **_shared(spec)}
    task["actions"] = [_old_action(action) for action in spec["actions"] if isinstance(action, dict)]
    writer = _Writer()
    try:
        text = writer.document({"version": "0.1", "name": _NAME, "tasks": [task]})
    except (yaml.YAMLError, UnicodeError):
        return None
    return WrittenText(f"{_header(text)}\n{text}", writer.body)


_STR: Final = "tag:yaml.org,2002:str"
_MAPPING: Final = yaml.MappingStartEvent(None, "tag:yaml.org,2002:map", implicit=True, flow_style=False)
_SEQUENCE: Final = yaml.SequenceStartEvent(None, "tag:yaml.org,2002:seq", implicit=True, flow_style=False)
_RESOLVER: Final[Any] = yaml.resolver.Resolver()
_MAX_KNOWN_CHARACTERS: Final = 64


class _Writer:
    """Writes one YAML document with libyaml's emitter.

    Texts with expressions are written so that the expressions stay as they are: without escapes, in one line.
    """

    def __init__(self) -> None:
        self._stream = StringIO()
        self._emit = yaml.CSafeDumper(self._stream, allow_unicode=True, width=1 << 30).emit
        self.body: Any = None
        """The value that was written, with the expressions of v1alpha1; None if two keys of a mapping became one."""

    def document(self, value: Any) -> str:
        """Return the text of a value. Raises yaml.YAMLError and UnicodeError."""
        self._emit(yaml.StreamStartEvent())
        self._emit(yaml.DocumentStartEvent(explicit=False))
        self.body = self._write(value)
        self._emit(yaml.DocumentEndEvent(explicit=False))
        self._emit(yaml.StreamEndEvent())
        return self._stream.getvalue()

    def _write(self, value: Any) -> Any:
        if isinstance(value, dict):
            self._emit(_MAPPING)
            made = {self._write(key): self._write(each) for key, each in value.items()}
            self._emit(yaml.MappingEndEvent())
            return made if len(made) == len(value) and None not in made.values() else None
        if isinstance(value, list):
            self._emit(_SEQUENCE)
            items = [self._write(each) for each in value]
            self._emit(yaml.SequenceEndEvent())
            return None if None in items else items
        if not isinstance(value, str):
            self._emit(yaml.ScalarEvent(None, "tag:yaml.org,2002:int", (True, False), str(value)))
            return value
        text = _old_text(value)
        self._emit(_known_scalar(text) if len(text) <= _MAX_KNOWN_CHARACTERS else _scalar(text))
        return text


def _scalar(text: str) -> yaml.ScalarEvent:
    # YAML would double the quotes of an expression in a scalar with single quotes, and escape those with double ones.
    is_literal = "\n" in text or ("{{" in text and ("'" in text or '"' in text))
    is_plain = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False)) == _STR
    return yaml.ScalarEvent(None, _STR, (is_plain, True), text, style="|" if is_literal else None)


_known_scalar: Final = lru_cache(maxsize=2048)(_scalar)


def _header(text: str) -> str:
    """Return the first line of a text that is made of v1alpha2's actions."""
    return _HEADER + _hash(text)


def _shared(fields: Raw) -> Raw:
    """Return the fields that tasks and actions share."""
    found: Raw = {}
    if volumes := _texts(fields.get("volumes")):
        found["volumes"] = volumes
    env = as_mapping(fields.get("env"))
    if variables := {name: value for name, value in env.items() if isinstance(value, str)}:
        found["environment"] = variables
    return found


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _old_action(action: Raw) -> Raw:
    found: Raw = {key: action[key] for key in ("name", "image") if isinstance(action.get(key), str)}
    timeout = action.get("timeout")
    if isinstance(timeout, int) and not isinstance(timeout, bool):
        found["timeout"] = timeout
    if args := _texts(action.get("args")):
        found["command"] = args
    found |= _shared(action)
    namespaces = {"network": action.get("networkNamespace"), "pid": action.get("pidNamespace")}
    if named := {key: value for key, value in namespaces.items() if isinstance(value, str)}:
        found["namespaces"] = named
    return found


def _up_status(obj: Raw) -> Any:
    """Return the status that the v1alpha1 view carries. v1alpha2's Template has none of its own."""
    return as_mapping(obj.get("status")).get("v1alpha2", MISSING)


def _down_status(obj: Raw) -> Any:
    return {"v1alpha2": obj["status"]} if "status" in obj else MISSING


def _text_hash(view: Raw) -> str:
    """Return a hash of the text of a v1alpha1 view. Actions of v1alpha2 never mix with those of a new text."""
    text = as_mapping(view.get("spec")).get("data")
    return _hash(text) if isinstance(text, str) else ""


TEMPLATE: Final = Kind(
    up, down, _up_status, _down_status, annotations=frozenset({TEMPLATE_TEXT_ANNOTATION}), guard=_text_hash
)
