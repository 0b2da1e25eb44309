"""YAML for cloud-init: stable order, plain style, and strings that stay strings ("123" and "on" are quoted)."""

from __future__ import annotations

from collections.abc import Mapping

import yaml


def to_yaml(document: Mapping[str, object]) -> bytes:
    """`document` in block style, keys in the order given."""
    text: str = yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=False, allow_unicode=True)
    return text.encode()
