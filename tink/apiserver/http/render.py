"""The forms of an answer besides compact JSON: indented JSON for people, YAML, and Kubernetes' protobuf. Pure."""

from __future__ import annotations

import orjson
import yaml

from tink.apiserver.http import protobuf
from tink.apiserver.http.accept import PROTOBUF, YAML, Accepted


class _Dumper(yaml.CSafeDumper):
    """Writes every list and map where it stands, even when two are equal."""

    def ignore_aliases(self, data: object) -> bool:
        """Say that nothing is shared."""
        return True


def as_yaml(body: bytes) -> bytes:
    """Write JSON as YAML, keys in order, as `kubectl get -o yaml` shows it."""
    return yaml.dump(orjson.loads(body), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, encoding="utf-8")


def rendered(body: bytes, accepted: Accepted) -> bytes:
    """Write an answer (JSON) in the form that its client accepts."""
    if accepted.media == YAML:
        return as_yaml(body)
    if accepted.media == PROTOBUF:
        return protobuf.encode(orjson.loads(body))
    return orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2) + b"\n" if accepted.pretty else body


def yaml_list(head: bytes) -> tuple[bytes, bytes]:
    """Give what stands before and after the items of a list in YAML; between them goes `yaml_item` of each.

    `head` is the list without items, as JSON. So a long list can be written as it is read, and not all at once.
    """
    made = orjson.loads(head)
    made.pop("items", None)
    before = {key: made.pop(key) for key in sorted(made) if key < "items"}
    return as_yaml(orjson.dumps(before)) + b"items:", as_yaml(orjson.dumps(made))


def yaml_item(body: bytes, *, first: bool) -> bytes:
    """Write one item of a list in YAML."""
    return (b"\n" if first else b"") + as_yaml(b"[" + body + b"]")
