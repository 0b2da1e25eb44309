"""What a real kube-apiserver tells of its own insides: our messages leave it out, so comparisons with it do, too."""

from __future__ import annotations

import re
from typing import Any

_DETAILS = re.compile(
    r' in scheme "pkg/runtime/scheme\.go:\d+"'
    r'| of type struct \{ APIVersion string .*?; Kind string .*?" \}'
    r"|StorageError: invalid object, Code: 4, Key: /registry/\S+, ResourceVersion: 0, AdditionalErrorMsg: "
    r"| \(\*unstructured\.Unstructured(?:List)?\)"
)


def without_details(value: Any) -> Any:
    """Drop Go files and their lines, Go types, and keys of etcd from the texts in a JSON value."""
    if isinstance(value, dict):
        return {key: without_details(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_details(item) for item in value]
    return _DETAILS.sub("", value) if isinstance(value, str) else value
