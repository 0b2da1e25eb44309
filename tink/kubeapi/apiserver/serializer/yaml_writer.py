"""JSON written as YAML: whole objects, and lists item by item. Pure."""

from __future__ import annotations

import orjson
import yaml


class _Dumper(yaml.CSafeDumper):
    """Writes every list and map where it stands, even when two are equal."""

    def ignore_aliases(self, _data: object, /) -> bool:
        """Say that nothing is shared."""
        return True


def dump_yaml(body: bytes) -> bytes:
    """Write JSON as YAML, keys in order, as `kubectl get -o yaml` shows it."""
    return yaml.dump(orjson.loads(body), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, encoding="utf-8")


def dump_yaml_list(head: bytes) -> tuple[bytes, bytes]:
    """Give what stands before and after the items of a list in YAML; between them goes `dump_yaml_item` of each.

    `head` is the list without items, as JSON. So a long list can be written as it is read, and not all at once.
    """
    made = orjson.loads(head)
    made.pop("items", None)
    before = {key: made.pop(key) for key in sorted(made) if key < "items"}
    return dump_yaml(orjson.dumps(before)) + b"items:", dump_yaml(orjson.dumps(made))


def dump_yaml_item(body: bytes, *, first: bool) -> bytes:
    """Write one item of a list in YAML."""
    return (b"\n" if first else b"") + dump_yaml(b"[" + body + b"]")
