"""Details of kube-apiserver's implementation in its messages, which ours lack, so comparisons leave them out."""

from __future__ import annotations

import re
from functools import lru_cache
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
_BEFORE = r"(^|failed to call webhook: |failed: |occurred: |in webhook response: )"
_END = r"(?= evaluating rule: |$)"
_ALIKE: tuple[tuple[str, ...], ...] = (
    # Pattern and replacement; third, if a search would be slow, what is in all texts that match.
    # What CEL says with the names of Go's types, or in the words of Go's own parsers.
    (r"got '[^']*', expected iterable type", "no iterable type"),
    (r"(invalid qualifier type|unsupported comprehension range type): \S+", r"\1"),
    (r"error parsing regexp: .*?" + _END, "<no pattern>"),
    (r'IP Address ".*" parse error during conversion from string: .*?' + _END, "<no address>"),
    (r'"[^"]*" is not an IP address' + _END, "<no address>"),
    (r"(?:network address parse error during conversion from string: )+(?=IPv4-mapped)", ""),
    (r"network address parse error .*?" + _END, "<no prefix>"),
    (r'"[^"]*" is not an IP address with the length of a prefix', "<no prefix>"),
    (r"invalid host: .*", "invalid host"),
    (
        r"^.*(?:number must not contain leading zeroes|Invalid character\(s\) found in|strconv\.ParseUint: p).*",
        "<no version>",
    ),
    (r"^(?:Prerelease is empty|Numeric PreRelease version must.*|No Major\.Minor\.Patch elements.*)", "<no version>"),
    (r"^(?:Version string empty|Build meta data is empty|short version cannot contain.*)", "<no version>"),
    (r'".*" is not a semantic version', "<no version>"),
    (r"ERROR: <input>:(\d+:\d+): Syntax error: .*", r"<no expression at \1>"),
    # What a decoder says of a body that it cannot read, and how it shows the beginning.
    (r"((?:Object 'Kind' is missing in '.*'|unexpected GroupVersion string: \S*))(?: \(.*\))?$", r"\1"),
    (r"(unrecognized \(must be of type \w+\): )(?!Object 'Kind'|unexpected GroupVersion).*", r"\1<unreadable>"),
    (r"^(?:error decoding (?:patch|YAML): |Invalid JSON Patch$).*", "<unreadable>"),
    (_BEFORE + r"couldn't get version/kind; .*", r"\1<unreadable>"),
    (_BEFORE + r"json: cannot unmarshal \w+ into Go value of type (?:map\[string\]|jsonpatch).*", r"\1<unreadable>"),
    (_BEFORE + r"(?:invalid character|unexpected end of JSON).*", r"\1<unreadable>"),
    (_BEFORE + r"[^:]*: line \d+ column \d+ \(char \d+\)$", r"\1<unreadable>"),
    (_BEFORE + r"(?:the body|it) must be an? (?:object|list).*", r"\1<unreadable>"),
    # What goes wrong on the way to a webhook, and what an answer with an HTTP status of its own means.
    (r'(Post "[^"]*": ).*', r"\1<why>"),
    (_BEFORE + r"(?:(?:an error on )?the server [^:]*|no(?: way)?$|it answered with HTTP status.*)", r"\1<refused>"),
    (_BEFORE + r"(?:converting \(|no kind |expected a \w+ of ).*", r"\1<another kind>"),
    # What is wrong with the answer of a conversion webhook.
    (r"returned (?:an )?invalid (?:converted )?(?:object|metadata)(?: in object)?(?: at index \d+)?: ", "returned: "),
    (r"returned: invalid groupVersion", "returned: invalid apiVersion"),
    (r"^.* returned: invalid kind \(expected \w+, received \)$", "Object 'Kind' is missing in '{}'"),
    (r"must have the same UID: ", "must have the same uid: "),
    (r"returned: metadata\.annotation: ", "returned: metadata.annotations: "),
    (r"(?:invalid )?metadata\.(\w+)(?:\[\w+\] must be a string, but is \w+| of type \S+ \{\}) in .*", r"<mistyped \1>"),
    # The names of Go's types; the last step of the path is what both say.
    (
        r"json: cannot unmarshal .*? into Go struct field [\w.$-]{0,200}?([\w$-]{1,60}) of type [\w.\[\]{}]+( \{\})?",
        r"<mistyped \1>",
        "json: cannot unmarshal ",
    ),
    (
        r"[\w.$\[\]/-]{0,200}?([\w$-]{1,60})"
        r"(?:\[\d+\]|(?:(?<=properties)|(?<=\bdata)|(?<=labels)|(?<=annotations))\.[^:\s.]+)*: "
        r"must be an? [a-z0-9 ]+, not [a-z]+",
        r"<mistyped \1>",
        "must be a",
    ),
    (r"json: cannot unmarshal \w+ into Go value of type v1\.ObjectMeta", "<mistyped metadata>"),
    (r"boolean or JSON schema expected", "<mistyped additionalProperties>"),
    (r'parsing time ".*?"(?: as ".*?": cannot parse ".*?" as ".*?"|: .*)', "<no time>"),
    (r"json: cannot unmarshal \w+ into Go value of type string", "<no time>"),
    (r"[\w.\[\]]{0,200}: is not a time such as [\w:.<>-]+", "<no time>", ": is not a time such as "),
    (r"illegal base64 data at input byte \d+", "<no base64>"),
    (r"[\w.\[\]/-]{0,200}: is not base64", "<no base64>", ": is not base64"),
    (r"expected (numeric|string|boolean|any scalar|list|map)(?: \(int or float\))?, got [^\n]*", r"<no \1>"),
    (r"must be no more than (\d+) bytes", r"must be no more than \1 characters"),
    (r"^(?:unable to parse (?:requirement|the label selector)|found '.*' ?,? ?expected).*", "<no selector>"),
    (r"(url must be a valid URL)(?:: .*)?(?=; desired)", r"\1"),
    (r'"Path":"', '"path":"'),
    (r'"Verb":"', '"verb":"'),
    # What all versions of a definition say alike, Kubernetes moves above them; we say where the client wrote it.
    (r"\bspec\.validation\.", "spec.versions[*].schema."),
    (r"\bspec\.(?=subresources\.|additionalPrinterColumns\[|selectableFields\b)", "spec.versions[*]."),
    (r"\bspec\.versions\[\d+\]", "spec.versions[*]"),
    (r"\bspec\.version(?=: |$)", "spec.versions[*].name"),
    (r"only \[.*?\] fields are allowed", "only some fields are allowed"),
)
_LONGEST = 4_000
"""Longer texts are repeated values; messages about them have the same form."""
_PATTERNS = [(re.compile(each[0], re.DOTALL), each[1], each[2] if len(each) > 2 else "") for each in _ALIKE]


def without_details(value: Any) -> Any:
    """Return a JSON value without Go files and their lines, Go types and keys of etcd in its texts."""
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
    return _text_in_common(value) if isinstance(value, str) else value


@lru_cache(maxsize=1 << 14)  # most texts are the same on both sides, and many come again
def _text_in_common(text: str) -> str:
    text = _VALUE.sub("Invalid value: <value>: ", _DETAILS.sub("", text))
    for pattern, words, within in _PATTERNS if len(text) <= _LONGEST else ():
        if within in text:
            text = pattern.sub(words, text)
    return text
