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
_VALUE = re.compile(
    r"Invalid value: .*?: (?="
    r"compilation failed|cel expression must|messageExpression |rule compile"  # theirs is the whole rule
    r"|must contain unique version names|must have exactly one version|must only contain printable"
    r"|only \[.*?\] fields are allowed"
    r"|must be atomic as item of a list)",  # theirs is the type of the list, whatever the message is about
    re.DOTALL,
)
_ALIKE = (
    # The names of Go's types; the last step of the path is what both say.
    (
        r"json: cannot unmarshal .*? into Go struct field [\w.$-]*?([\w$-]+) of type [\w.\[\]{}]+( \{\})?",
        r"<mistyped \1>",
    ),
    (
        r"[\w.$\[\]/-]*?([\w$-]+)"
        r"(?:\[\d+\]|(?:(?<=properties)|(?<=\bdata)|(?<=labels)|(?<=annotations))\.[^:\s.]+)*: "
        r"must be an? [a-z0-9 ]+, not [a-z]+",
        r"<mistyped \1>",
    ),
    (r"json: cannot unmarshal \w+ into Go value of type v1\.ObjectMeta", "<mistyped metadata>"),
    (r"boolean or JSON schema expected", "<mistyped additionalProperties>"),
    (r'parsing time ".*?"(?: as ".*?": cannot parse ".*?" as ".*?"|: .*)', "<no time>"),
    (r"json: cannot unmarshal \w+ into Go value of type string", "<no time>"),
    (r"[\w.\[\]]*: is not a time such as [\w:.<>-]+", "<no time>"),
    (r"illegal base64 data at input byte \d+", "<no base64>"),
    (r"[\w.\[\]/-]*: is not base64", "<no base64>"),
    # What all versions of a definition say alike, Kubernetes moves above them; we say where the client wrote it.
    (r"\bspec\.validation\.", "spec.versions[*].schema."),
    (r"\bspec\.(?=subresources\.|additionalPrinterColumns\[|selectableFields\b)", "spec.versions[*]."),
    (r"\bspec\.versions\[\d+\]", "spec.versions[*]"),
    (r"\bspec\.version(?=: |$)", "spec.versions[*].name"),
    (r"only \[.*?\] fields are allowed", "only some fields are allowed"),
)
_PATTERNS = [(re.compile(pattern), words) for pattern, words in _ALIKE]


def without_details(value: Any) -> Any:
    """Drop Go files and their lines, Go types, and keys of etcd from the texts in a JSON value."""
    if isinstance(value, dict):
        return {key: without_details(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_details(item) for item in value]
    return _DETAILS.sub("", value) if isinstance(value, str) else value


def in_common(value: Any) -> Any:
    """Write the texts in a JSON value so that ours and theirs are the same when they say the same."""
    if isinstance(value, dict):
        return {key: in_common(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_common(item) for item in value]
    if not isinstance(value, str):
        return value
    text = _VALUE.sub("Invalid value: <value>: ", _DETAILS.sub("", value))
    for pattern, words in _PATTERNS:
        text = pattern.sub(words, text)
    return text
