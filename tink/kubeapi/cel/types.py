"""The types of CEL: a caller declares its variables with them, and the checker works on them.

A caller describes its data with scalars (`INT`, `StringType(max_size=...)`), `ListType`, `MapType` and `ObjectType`.
Sizes are in the unit of CEL's `size()` and only matter for the estimate of costs. If no size is declared, the largest
size that fits into a request is assumed, as in Kubernetes (k8s.io/apiserver, pkg/cel/common/schemas.go).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

MAX_REQUEST_BYTES = 3 * 1024 * 1024
"""Size of the largest request that Kubernetes assumes where no size is declared."""

_STRING_LIMIT = MAX_REQUEST_BYTES - 2


class CelType:
    """The base of all types. `shape` is the kind of type, or the name of a scalar; some types have a `name`."""

    __slots__ = ()
    parameters: ClassVar[tuple[str, ...]] = ()
    """The names of the fields with the type's parameters."""

    @property
    def shape(self) -> str:
        """The kind of type in one word, or the name of a scalar."""
        raise NotImplementedError

    @cached_property
    def params(self) -> tuple["CelType", ...]:
        """The type parameters."""
        return tuple([getattr(self, name) for name in self.parameters])


@dataclass(frozen=True)
class Scalar(CelType):
    """A type without parameters. `max_size` limits strings and bytes; `min_json` is the length of its shortest JSON
    text.
    """

    name: str
    max_size: int | None = None
    min_json: int = field(default=1, compare=False)

    @property
    def shape(self) -> str:
        """The name."""
        return self.name


def StringType(max_size: int | None = None) -> Scalar:  # noqa: N802 - stands beside ListType and MapType
    """Return the type of strings of at most `max_size` bytes (Kubernetes takes four times the schema's maxLength)."""
    return Scalar("string", max_size, 2)


def BytesType(max_size: int | None = None) -> Scalar:  # noqa: N802
    """Return the type of bytes, which are base64 in JSON."""
    return Scalar("bytes", max_size, 2)


def DynType(max_size: int | None = None) -> Scalar:  # noqa: N802
    """Return the type of values that are checked only at evaluation. `max_size` is for x-kubernetes-int-or-string."""
    return Scalar("dyn", max_size, 1)


BOOL = Scalar("bool", 0, 4)
INT = Scalar("int", 0, 1)
UINT = Scalar("uint", 0, 1)
DOUBLE = Scalar("double", 0, 1)
STRING = StringType()
BYTES = BytesType()
NULL = Scalar("null", 0, 4)
DYN = DynType()
TIMESTAMP = Scalar("timestamp", 32, 21)
DATE = Scalar("timestamp", 12, 12)
DURATION = Scalar("duration", 32, 3)
ERROR = Scalar("!error!")


@dataclass(frozen=True)
class ListType(CelType):
    """A list. `kind` (x-kubernetes-list-type) decides how `==` and `+` treat it.

    `keys` are the JSON names of the fields that identify an element of a list of kind 'map'.
    """

    element: CelType
    max_items: int | None = None
    kind: str = "atomic"
    keys: tuple[str, ...] = ()

    shape = "list"
    parameters = ("element",)


@dataclass(frozen=True)
class MapType(CelType):
    """A map with keys of one type and values of one type."""

    key: CelType
    value: CelType
    max_properties: int | None = None

    shape = "map"
    parameters = ("key", "value")


@dataclass(frozen=True)
class ObjectField:
    """A field of an object: its type and its key in JSON.

    `required` fields without default count into the smallest size of the object.
    """

    type: CelType
    name_in_json: str
    required: bool = False


@dataclass(frozen=True, eq=False)
class ObjectType(CelType):
    """An object with declared fields, by their names in expressions. Object types with the same `name` are equal."""

    name: str
    fields: Mapping[str, ObjectField]

    shape = "object"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectType) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


KEYWORDS = frozenset(
    (
        "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import",
        "let", "loop", "package", "namespace", "return", "var", "void", "while",
    )
)  # fmt: skip
"""Words that cannot be the name of a field in an expression. Such a field is called `__word__`."""


def declared_field(t: "CelType", name: str) -> ObjectField | None:
    """Return the declared field of a selection, or None. A keyword may be plain where the grammar allows it."""
    if not isinstance(t, ObjectType):
        return None
    found = t.fields.get(name)
    return t.fields.get(f"__{name}__") if found is None and name in KEYWORDS else found


@dataclass(frozen=True)
class Opaque(CelType):
    """A named type with parameters whose values only functions can read: optionals and Kubernetes' own types."""

    name: str
    params: tuple[CelType, ...] = ()

    shape = "opaque"


@dataclass(frozen=True)
class TypeType(CelType):
    """The type of a type, which is its parameter."""

    params: tuple[CelType, ...] = ()

    shape = "type"


@dataclass(frozen=True)
class TypeVar(CelType):
    """A type parameter of a function, or a type that is not known yet."""

    name: str

    shape = "typevar"


def optional_of(inner: CelType) -> Opaque:
    """Return the type of an optional value."""
    return Opaque("optional_type", (inner,))


def with_params(t: CelType, params: tuple[CelType, ...]) -> CelType:
    """Return a type with other type parameters, without the declared sizes."""
    if type(t) is ListType:
        return ListType(params[0])
    if type(t) is MapType:
        return MapType(params[0], params[1])
    if type(t) is Opaque:
        return Opaque(t.name, params)
    if type(t) is TypeType:
        return TypeType(params)
    return t


def same(a: CelType, b: CelType) -> bool:
    """Return True if two types are the same, apart from sizes."""
    if a is b:
        return True
    if a.shape != b.shape or getattr(a, "name", "") != getattr(b, "name", ""):
        return False
    mine, others = a.params, b.params
    return len(mine) == len(others) and all(map(same, mine, others))


def text_of(t: CelType) -> str:
    """Return a type as cel-go writes it in errors: `list(map(string, int))`."""
    name = str(getattr(t, "name", t.shape))
    if t.params:
        return f"{name}({', '.join(map(text_of, t.params))})"
    return name


def runtime_name(t: CelType) -> str:
    """Return the name that values of a type have at evaluation (`values.type_name`)."""
    return _RUNTIME_NAMES.get(t.shape) or str(getattr(t, "name", t.shape))


_RUNTIME_NAMES = {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp", "null": "null_type"}


def min_json_size(t: CelType) -> int:
    """Return the length in bytes of the shortest JSON text of a value of the type."""
    if isinstance(t, Scalar):
        return t.min_json
    if isinstance(t, ObjectType):
        needed = (f for f in t.fields.values() if f.required)
        return 2 + sum(len(f.name_in_json.encode()) + min_json_size(f.type) + 4 for f in needed)
    return 2


def max_elements(t: CelType) -> int:
    """Return the largest `size()` of a value of a declared type, or 0 for types without size."""
    if isinstance(t, Scalar):
        declared, least = t.max_size, 1
    elif isinstance(t, ListType):
        declared, least = t.max_items, min_json_size(t.element) + 1
    elif isinstance(t, MapType):
        declared, least = t.max_properties, min_json_size(t.value) + 6
    else:
        return 0
    return _STRING_LIMIT // least if declared is None else max(declared, 0)
