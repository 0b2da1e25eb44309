"""What a real kube-apiserver tells of its own insides: our messages leave it out, so comparisons with it do, too."""

from __future__ import annotations

import re

_DETAILS = re.compile(
    r' in scheme "pkg/runtime/scheme\.go:\d+"'
    r'| of type struct \{ APIVersion string .*?; Kind string .*?" \}'
    r"|StorageError: invalid object, Code: 4, Key: /registry/\S+, ResourceVersion: 0, AdditionalErrorMsg: "
    r"| \(\*unstructured\.Unstructured(?:List)?\)"
)


def without_details(text: str) -> str:
    """Drop Go files and their lines, Go types, and keys of etcd from a message."""
    return _DETAILS.sub("", text)
