"""Path, options and selectors of a request (k8s.io/apimachinery, meta/v1).

Pure: from strings to values, or to a `StatusError` that names the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

from multidict import MultiMapping

from tink.golang import json_kind
from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.access import ADMIN, Caller
from tink.kubeapi.apiserver.errors import StatusError, bad_request
from tink.kubeapi.schema import field_errors, meta
from tink.kubeapi.schema.field_errors import FieldError, quote
from tink.printable import printable


@dataclass(frozen=True, slots=True)
class Target:
    """The object or collection that a path names (Kubernetes: RequestInfo). Missing parts are "".

    `more`: the path continues after the subresource.
    """

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    more: bool = False


def parse_path(raw_path: str) -> Target | None:
    """Parse the path of a resource: `/api/v1/...`, `/apis/<group>/<version>/...`. Return None for other paths."""
    steps = [unquote(step) for step in raw_path.strip("/").split("/")]
    if any(not step or "/" in step or "\0" in step for step in steps):
        return None
    match steps:
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    # /api/v1/namespaces/x is the namespace itself, /api/v1/namespaces/x/secrets is in it.
    if len(rest) > 2 and rest[0] == "namespaces" and not (not group and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if not rest:
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    return Target(group, version, plural, namespace, name, subresource, more=len(rest) > 3)


OptionsKind = Literal["CreateOptions", "UpdateOptions", "PatchOptions", "DeleteOptions"]

MAX_MANAGER = 128  # Maximum length of a field manager's name, in characters
POLICIES = ("Background", "Foreground", "Orphan")


MAX_VERSION = (1 << 64) - 1


def parse_bool(value: str) -> bool:
    """Parse a boolean of a query: "", "0" and "false" in any case are false; anything else is true.
    (k8s.io/apimachinery, pkg/runtime: Convert_Slice_string_To_bool. Go's own ParseBool forms are all among these.)"""
    return value not in ("", "0") and value.lower() != "false"


def parse_number(value: str) -> int:
    """Parse a number; "" is 0. Raises StatusError (400)."""
    if not value:
        return 0
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", value):
        raise errors.bad_request(f"strconv.ParseInt: parsing {quote(value)}: invalid syntax")
    return int(value)


def parse_version(value: str, *, watch: bool = False) -> int:
    """Parse a resourceVersion; "" is 0. Raises StatusError (400)."""
    if not value:
        return 0
    if not re.fullmatch(r"[0-9]{1,20}", value) or int(value) > MAX_VERSION:
        wrong = f"resourceVersion: Invalid value: {quote(value)}: strconv.ParseUint: parsing {quote(value)}"
        words = "invalid syntax" if not value.isdigit() else "value out of range"
        raise errors.bad_request(f"{'' if watch else 'invalid resource version: '}{wrong}: {words}")
    return int(value)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a create, update or patch.

    `validation` is the treatment of fields that the schema lacks. `manager` is the writer's name in the managed fields.
    `force`: an apply takes over fields of other managers. `caller` is the user for webhooks.
    """

    kind: OptionsKind = "UpdateOptions"
    dry_run: bool = False
    validation: str = "Warn"
    manager: str = "unknown"
    force: bool = False
    given: tuple[tuple[str, str], ...] = ()
    caller: Caller = ADMIN

    @staticmethod
    def of(
        query: MultiMapping[str], kind: OptionsKind, user_agent: str, *, apply: bool = False, caller: Caller = ADMIN
    ) -> WriteOptions:
        """Parse a query. Raises StatusError (400, 422)."""
        manager = query.get("fieldManager", "")
        wrong: list[FieldError] = []
        if apply and not manager:
            wrong.append(field_errors.required("fieldManager", "is required for apply patch"))
        if kind == "PatchOptions" and not apply and "force" in query:
            wrong.append(field_errors.forbidden("force", "may not be specified for non-apply patch"))
        if len(manager) > MAX_MANAGER:
            wrong.append(field_errors.too_long("fieldManager", MAX_MANAGER))
        for at, letter in enumerate(manager):
            if not letter.isprintable():
                why = f"invalid character U+{ord(letter):04X} (at position {at})"
                wrong.append(field_errors.invalid("fieldManager", manager, why))
        wrong += _check_dry_run(query.getall("dryRun", []))
        validation = query.get("fieldValidation", "")
        if validation not in ("", "Ignore", "Warn", "Strict"):
            wrong.append(field_errors.not_supported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"]))
        if wrong:
            raise errors.invalid("meta.k8s.io", kind, "", wrong)
        return WriteOptions(
            kind,
            bool(query.getall("dryRun", [])),
            validation or "Warn",
            manager or (printable(user_agent.partition("/")[0], "")[:MAX_MANAGER] or "unknown"),
            apply and parse_bool(query.get("force", "")),
            tuple((name, query[name]) for name in ("fieldManager", "fieldValidation") if query.get(name)),
            caller,
        )

    def object(self) -> dict[str, Any]:
        """Return the options as the object for webhooks."""
        made: dict[str, Any] = {"kind": self.kind, "apiVersion": "meta.k8s.io/v1", **dict(self.given)}
        return made | ({"dryRun": ["All"]} if self.dry_run else {}) | ({"force": True} if self.force else {})


def _check_dry_run(values: list[str]) -> list[FieldError]:
    if all(value == "All" for value in values):
        return []
    return [field_errors.not_supported("dryRun", values, ["All"])]


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of a list or watch. Versions are the client's: "" means any, "0" any that is available."""

    labels: str = ""
    fields: str = ""
    limit: int = 0
    continues: str = ""
    version: str = ""
    version_match: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout_s: int = 0

    @staticmethod
    def of(query: Mapping[str, str]) -> ListOptions:
        """Parse the query of a list or watch. Raises StatusError (400, 422)."""
        initial = query.get("sendInitialEvents")
        options = ListOptions(
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
            max(0, parse_number(query.get("limit", ""))),
            query.get("continue", ""),
            query.get("resourceVersion", ""),
            query.get("resourceVersionMatch", ""),
            parse_bool(query.get("watch", "")),
            parse_bool(query.get("allowWatchBookmarks", "")),
            None if initial is None else parse_bool(initial),
            parse_number(query.get("timeoutSeconds", "")),
        )
        if wrong := list(options._check_watch() if options.watch else options._check_list()):
            raise errors.invalid("meta.k8s.io", "ListOptions", "", wrong)
        parse_version(options.version, watch=options.watch)
        return options

    def _check_list(self) -> Iterator[FieldError]:
        """Yield errors (k8s.io/apimachinery, pkg/apis/meta/internalversion/validation)."""
        at, match = "resourceVersionMatch", self.version_match
        if match:
            if not self.version:
                yield field_errors.forbidden(at, f"{at} is forbidden unless resourceVersion is provided")
            if self.continues:
                yield field_errors.forbidden(at, f"{at} is forbidden when continue is provided")
            if match not in ("Exact", "NotOlderThan"):
                yield field_errors.not_supported(at, match, ["Exact", "NotOlderThan", ""])
            if match == "Exact" and self.version == "0":
                yield field_errors.forbidden(at, f'{at} "exact" is forbidden for resourceVersion "0"')
        if self.initial_events is not None:
            yield field_errors.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")

    def _check_watch(self) -> Iterator[FieldError]:
        at, match = "resourceVersionMatch", self.version_match
        if self.initial_events is not None and match != "NotOlderThan":
            yield field_errors.forbidden(at, f"sendInitialEvents requires setting {at} to NotOlderThan")
        if match and self.initial_events is None:
            yield field_errors.forbidden(at, f"{at} is forbidden for watch unless sendInitialEvents is provided")
        if match and match != "NotOlderThan":
            yield field_errors.not_supported(at, match, ["NotOlderThan"])
        if self.continues:
            yield field_errors.forbidden(at, f"{at} is forbidden when continue is provided")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a delete: preconditions, and a dry run.

    `policy` is the treatment of dependents: Background, Foreground, Orphan, or "" if the client names none.
    """

    dry_run: bool = False
    uid: str = ""
    version: str = ""
    policy: str = ""
    caller: Caller = ADMIN

    @staticmethod
    def of(query: MultiMapping[str], body: Any, caller: Caller = ADMIN) -> DeleteOptions:
        """Parse the options from the body of a delete or, without one, from its query. Raises StatusError (400, 422).

        kube-apiserver ignores the query if there is a body (endpoints/handlers/delete.go). This server rejects a query
        that is more cautious than the body (a dry run, keeping the dependents).
        """
        if body is not None:
            _check_types(body)
            _check_agreement(query, body)
        else:
            body = {name: query[name] for name in ("propagationPolicy",) if query.get(name)}
            if "orphanDependents" in query:
                body["orphanDependents"] = parse_bool(query["orphanDependents"])
            body["dryRun"] = query.getall("dryRun", [])
            parse_number(query.get("gracePeriodSeconds", ""))
        policy, orphan, dry_run = body.get("propagationPolicy"), body.get("orphanDependents"), body.get("dryRun") or []
        wrong: list[FieldError] = []
        if policy is not None and orphan is not None:
            both = "orphanDependents and deletionPropagation cannot be both set"
            wrong.append(field_errors.invalid("propagationPolicy", policy, both))
        if policy is not None and policy not in POLICIES:
            allowed = ["Foreground", "Background", "Orphan", "nil"]
            wrong.append(field_errors.not_supported("propagationPolicy", policy, allowed))
        wrong += _check_dry_run(dry_run)
        if wrong:
            raise errors.invalid("meta.k8s.io", "DeleteOptions", "", wrong)
        wanted = body.get("preconditions") or {}
        if orphan is not None:
            policy = "Orphan" if orphan else "Background"
        uid, version = (str(wanted.get(name) or "") for name in ("uid", "resourceVersion"))
        return DeleteOptions(bool(dry_run), uid, version, policy or "", caller)

    def object(self) -> dict[str, Any]:
        """Return the options as the object for webhooks."""
        made: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
        if self.uid or self.version:
            named = {"uid": self.uid, "resourceVersion": self.version}
            made["preconditions"] = {name: value for name, value in named.items() if value}
        if self.policy:
            made["propagationPolicy"] = self.policy
        return made | ({"dryRun": ["All"]} if self.dry_run else {})


def _check_agreement(query: MultiMapping[str], body: dict[str, Any]) -> None:
    """Check that the body of a delete does not do more than its query allows. Raises StatusError (400)."""
    orphans = body.get("orphanDependents") or body.get("propagationPolicy") == "Orphan"
    given = (
        ("dryRun", any(query.getall("dryRun", [])), bool(body.get("dryRun"))),
        ("propagationPolicy", query.get("propagationPolicy") == "Orphan", orphans),
        ("orphanDependents", parse_bool(query.get("orphanDependents", "")), orphans),
    )
    for name, in_query, in_body in given:
        if in_query and not in_body:
            raise errors.bad_request(
                f"{name}: the query of this DELETE says {quote(query[name])}, its body does not, and the body of a "
                f"DELETE is what counts: set {name} in the body, or send no body"
            )


_DELETE_TYPES: dict[str, tuple[type, str]] = {
    "gracePeriodSeconds": (int, "an integer"),
    "preconditions": (dict, "an object"),
    "orphanDependents": (bool, "a boolean"),
    "propagationPolicy": (str, "a string"),
    "dryRun": (list, "a list"),
}


def _check_types(body: Any) -> None:
    """Check that a body is DeleteOptions, of any group (clients differ in it). Raises StatusError."""
    if not isinstance(body, dict):
        raise errors.bad_request("the body must be an object")
    if body.get("kind", "DeleteOptions") != "DeleteOptions":
        raise errors.bad_request(
            f"no kind {quote(body['kind'])} is registered for version {quote(body.get('apiVersion', ''))}"
        )
    for name, (wanted, words) in _DELETE_TYPES.items():
        value = body.get(name)
        if value is not None and (not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))):
            raise errors.bad_request(f"{name}: must be {words}, not {json_kind(value)}")


Labels = Mapping[str, str]
Match = Callable[[Labels], bool]
Term = tuple[str, str, bool]
"""A term of a field selector: field, value, True if they must be equal."""

_KEY = r"[^ \t\r\n=!(),<>]+"
_REQUIREMENT = re.compile(
    rf"""\s*(?:
        !\s*(?P<absent>{_KEY})
        | (?P<key>{_KEY}) (?:
            \s*(?P<operator>==|!=|=|<|>)\s*(?P<value>{_KEY})?
            | \s+(?P<set>in|notin)\s*\((?P<values>[^=!()<>]*)\)
        )?
    )\s*(?P<more>,|$)""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def parse_labels(text: str) -> Match | None:
    """Compile a label selector; None if it selects everything. Raises StatusError (400).

    Terms are equality based (`a=b`, `a==b`, `a!=b`) or set based (`a in (b,c)`, `a notin (b)`, `a`, `!a`, `a>1`,
    `a<1`). All must hold (Kubernetes documentation, "Labels and Selectors"; k8s.io/apimachinery, pkg/labels).
    """
    if not text.strip():
        return None
    requirements: list[Match] = []
    at, more = 0, ","
    while more:
        found = _REQUIREMENT.match(text, at)
        if found is None:
            raise bad_request(f"unable to parse the label selector {quote(text)} at {quote(text[at:])}")
        requirements.append(_requirement(found))
        at, more = found.end(), found["more"]
    return lambda labels: all(holds(labels) for holds in requirements)


def _requirement(found: re.Match[str]) -> Match:
    key, operator = found["absent"] or found["key"], found["operator"] or found["set"]
    values = frozenset(map(str.strip, (found["values"] or "").split(",")))
    value = found["value"] or ""
    if operator in ("<", ">") and not _INTEGER.fullmatch(value):
        raise _wrong(value, "for 'Gt', 'Lt' operators, the value must be an integer")
    if wrong := meta.wrong_keys(key):
        raise _wrong(key, "; ".join(wrong))
    for given in sorted(values) if found["set"] else [value]:
        if wrong := meta.wrong_values(given):
            raise _wrong(given, "; ".join(wrong))
    if operator in ("<", ">"):
        return _ordered(key, operator, int(value))
    if operator is None:
        return requirement(key, "DoesNotExist" if found["absent"] else "Exists", ())
    return requirement(key, "NotIn" if operator in ("notin", "!=") else "In", values if found["set"] else [value])


def requirement(key: str, operator: str, values: Iterable[str]) -> Match:
    """Compile a LabelSelectorRequirement."""
    wanted = frozenset(values)
    match operator:
        case "In":
            return lambda labels: labels.get(key) in wanted
        case "NotIn":
            return lambda labels: labels.get(key) not in wanted
        case "Exists":
            return lambda labels: key in labels
        case _:
            return lambda labels: key not in labels


def _wrong(value: str, why: str) -> StatusError:
    return bad_request(f"unable to parse the label selector: Invalid value: {quote(value)}: {why}")


def _ordered(key: str, operator: str, bound: int) -> Match:
    def holds(labels: Labels) -> bool:
        value = labels.get(key, "")
        if not _INTEGER.fullmatch(value):
            return False
        return int(value) > bound if operator == ">" else int(value) < bound

    return holds


def labels_of(obj: Mapping[str, Any]) -> Labels:
    """Return the labels of an object."""
    labels: Labels = obj["metadata"].get("labels") or {}
    return labels


_TERM = re.compile(r"(?P<field>.*?)(?P<op>!=|==|=)(?P<value>.*)", re.DOTALL)
_PART = re.compile(r"(?:[^\\,]|\\.|\\$)+", re.DOTALL)
_SPECIAL = re.compile(r"\\(.?)|([,=])", re.DOTALL)


def parse_fields(text: str, known: Mapping[str, tuple[str, ...]], *, builtin: bool = False) -> list[Term]:
    """Parse a field selector (k8s.io/apimachinery, pkg/fields). `known` are the selectable fields. Raises
    StatusError (400)."""
    terms = []
    for part in sorted(_PART.findall(text)):
        found = _TERM.fullmatch(part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        value = _unescape(found["value"])
        if found["field"] not in known:
            # Built-in types without selectable fields have their own wording.
            if builtin and set(known) <= {"metadata.name", "metadata.namespace"}:
                only = 'only "metadata.name", "metadata.namespace"'
                raise bad_request(f"{quote(found['field'])} is not a known field selector: {only}")
            raise bad_request(f"field label not supported: {found['field']}")
        terms.append((found["field"], value, found["op"] != "!="))
    return terms


def _unescape(value: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[2]:
            raise bad_request(f"invalid field selector: unescaped character in value: {found[2]}")
        if found[1] not in ("\\", ",", "="):
            raise bad_request(f"invalid field selector: invalid escape sequence: \\{found[1]}")
        return found[1]

    return _SPECIAL.sub(one, value)


def match_fields(terms: list[Term], known: Mapping[str, tuple[str, ...]]) -> Callable[[Any], bool]:
    """Compile a parsed field selector."""

    def holds(obj: Any) -> bool:
        for name, value, equal in terms:
            at = obj
            for step in known[name]:
                at = at.get(step) if isinstance(at, dict) else None
            shown = str(at).lower() if isinstance(at, bool) else "" if at is None else str(at)
            if (shown == value) != equal:
                return False
        return True

    return holds
