"""Which functions there are and with which types: CEL's standard library and the extensions of Kubernetes 1.36.

`signatures.txt` has one overload a line: the function, the id of the overload (costs and the compiler go by it), its
signature; a type before the dot is the receiver. Single capital letters are type parameters. The table was made from
the declarations of Kubernetes' own environment, see `tests/unit/kubeapi/cel/oracle`.
"""

from dataclasses import dataclass
from pathlib import Path

from tink.kubeapi.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    ListType,
    MapType,
    ObjectType,
    Opaque,
    Type,
    TypeType,
    TypeVar,
    text_of,
)

_TABLE = Path(__file__).with_name("signatures.txt").read_text(encoding="ascii")

URL = ObjectType("kubernetes.URL", {})
QUANTITY = ObjectType("kubernetes.Quantity", {})
SEMVER = ObjectType("kubernetes.Semver", {})
FORMAT = ObjectType("kubernetes.NamedFormat", {})
IP = Opaque("net.IP")
CIDR = Opaque("net.CIDR")

FORMAT_NAMES = (
    "byte", "date", "datetime", "dns1035Label", "dns1035LabelPrefix", "dns1123Label", "dns1123LabelPrefix",
    "dns1123Subdomain", "dns1123SubdomainPrefix", "labelValue", "qualifiedName", "uri", "uuid",
)  # fmt: skip

_NAMED: dict[str, Type] = {
    "bool": BOOL,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "dyn": DYN,
    "duration": DURATION,
    "timestamp": TIMESTAMP,
    "kubernetes.URL": URL,
    "kubernetes.Quantity": QUANTITY,
    "kubernetes.Semver": SEMVER,
    "kubernetes.NamedFormat": FORMAT,
    "net.IP": IP,
    "net.CIDR": CIDR,
}

TYPE_NAMES: dict[str, Type] = {
    "bool": BOOL,
    "bytes": BYTES,
    "double": DOUBLE,
    "google.protobuf.Duration": DURATION,
    "int": INT,
    "list": ListType(DYN),
    "map": MapType(DYN, DYN),
    "null_type": NULL,
    "string": STRING,
    "google.protobuf.Timestamp": TIMESTAMP,
    "type": TypeType(),
    "uint": UINT,
    "optional_type": Opaque("optional_type"),
    "net.IP": IP,
    "net.CIDR": CIDR,
}
"""Names of types that expressions can use as values."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. For a `member` the first argument is the receiver."""

    id: str
    member: bool
    args: tuple[Type, ...]
    result: Type
    variables: tuple[str, ...]


def _split(text: str) -> list[str]:
    """The parts between the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    tail = text[start:].strip()
    return [*parts, tail] if tail else parts


def _type(text: str) -> Type:
    head, bracket, rest = text.partition("(")
    if not bracket:
        return _NAMED[text] if text in _NAMED else TypeVar(text)
    params = [_type(part) for part in _split(rest[:-1])]
    if head == "list":
        return ListType(params[0])
    if head == "map":
        return MapType(params[0], params[1])
    if head == "type":
        return TypeType(params[0])
    return Opaque(head, tuple(params))


def _names(t: Type) -> set[str]:
    return {t.name} if isinstance(t, TypeVar) else set().union(*map(_names, t.params)) if t.params else set()


def _overload(ident: str, args: list[Type], result: Type, *, member: bool) -> Overload:
    names = set().union(_names(result), *map(_names, args))
    return Overload(ident, member, tuple(args), result, tuple(sorted(names)))


def _declared() -> dict[str, list[Overload]]:
    table: dict[str, list[Overload]] = {}
    for line in _TABLE.strip().splitlines():
        name, ident, signature = line.split(None, 2)
        given, _, result = signature.rpartition(" -> ")
        head, _, inner = given.partition(".(") if not given.startswith("(") else ("", "", given[1:])
        args = [_type(part) for part in _split(inner[:-1])]
        member = bool(head)
        table.setdefault(name, []).append(
            _overload(ident, [_type(head), *args] if member else args, _type(result), member=member)
        )
    return table


_COMPARED = (("less", "_<_"), ("less_equals", "_<=_"), ("greater", "_>_"), ("greater_equals", "_>=_"))
_NUMERIC = (("int64", INT), ("uint64", UINT), ("double", DOUBLE))


def _comparisons(table: dict[str, list[Overload]]) -> None:
    """Every order operator over the numbers in every pairing, and over the other types with themselves."""
    for word, function in _COMPARED:
        overloads = [_overload(f"{word}_bool", [BOOL, BOOL], BOOL, member=False)]
        for left_name, left in _NUMERIC:
            for right_name, right in sorted(_NUMERIC, key=lambda pair: pair[0] != left_name):
                suffix = left_name if left is right else f"{left_name}_{right_name}"
                overloads.append(_overload(f"{word}_{suffix}", [left, right], BOOL, member=False))
        for t in (STRING, BYTES, TIMESTAMP, DURATION):
            overloads.append(_overload(f"{word}_{t.name}", [t, t], BOOL, member=False))
        table[function] = overloads


def _list_functions(table: dict[str, list[Overload]]) -> None:
    """The functions that exist once for each type of element."""
    ordered = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
    item = TypeVar("T")
    for t in ordered:
        name, elements = text_of(t), ListType(t)
        long = f"google.protobuf.{name.title()}" if t in (DURATION, TIMESTAMP) else name
        rows = [
            ("isSorted", f"list_{name}_is_sorted_bool", [elements], BOOL),
            ("max", f"list_{name}_max_{name}", [elements], t),
            ("min", f"list_{name}_min_{name}", [elements], t),
            ("sort", f"list_{long}_sort", [elements], elements),
            ("@sortByAssociatedKeys", f"list_{long}_sortByAssociatedKeys", [ListType(item), elements], ListType(item)),
        ]
        if t in (INT, UINT, DOUBLE, DURATION):
            rows.append(("sum", f"list_{name}_sum_{name}", [elements], t))
        for function, ident, args, result in rows:
            table.setdefault(function, []).append(_overload(ident, list(args), result, member=True))


def _all() -> dict[str, list[Overload]]:
    table = _declared()
    _comparisons(table)
    _list_functions(table)
    for name in FORMAT_NAMES:
        table[f"format.{name}"] = [_overload(f"format.{name}", [], FORMAT, member=False)]
    return table


FUNCTIONS = _all()
"""Every function with its overloads, in the order in which they are tried."""
