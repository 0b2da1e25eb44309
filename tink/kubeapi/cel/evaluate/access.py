"""Reading the data: variables, fields, indexes, and what JSON's values become when they are read.

Data stay as they are. Only where the schema gives a string another meaning (times, bytes), a number another
type (double) or a list another kind (set, map) is the one value converted when it is read.
"""

from collections.abc import Callable
from typing import Any

from tink.kubeapi.cel.code import Code, Frame, Run
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.library.named_formats import decoded
from tink.kubeapi.cel.library.times import json_duration, json_timestamp
from tink.kubeapi.cel.types import ListType, MapType, ObjectType, Type
from tink.kubeapi.cel.values import ABSENT, MapList, Optional, SetList, UInt, shown, type_name

Reader = Callable[[Any], Any]


def missing_key(key: Any) -> EvaluationError:
    """The error for a key or field that is not there."""
    return EvaluationError(f"no such key: {shown(key)}")


def _json_bytes(value: Any) -> Any:
    if type(value) is not str:
        return value
    data = decoded(value)
    if data is None:
        raise EvaluationError(f"Invalid byte formatted string {value}")
    return data


def _json_double(value: Any) -> Any:
    return float(value) if type(value) is int else value


_SCALARS: dict[str, Reader] = {
    "timestamp": json_timestamp,
    "duration": json_duration,
    "bytes": _json_bytes,
    "double": _json_double,
}


def reader(t: Type) -> Reader | None:
    """What makes a JSON value of a declared type a value of CEL; None where it is one already."""
    if isinstance(t, ListType):
        return _list_reader(t)
    if isinstance(t, MapType):
        inner = reader(t.value)
        if inner is None:
            return None
        read = inner
        return lambda items: {key: read(value) for key, value in items.items()} if type(items) is dict else items
    return _SCALARS.get(t.shape)


def _list_reader(t: ListType) -> Reader | None:
    read = reader(t.element)
    if t.kind == "set":
        return lambda items: SetList(map(read, items) if read else items)
    if t.kind == "map":
        keys = t.keys
        return lambda items: MapList(items, keys)
    if read is None:
        return None
    convert = read
    return lambda items: [convert(item) for item in items] if type(items) is list else items


def variable(slot: int, t: Type) -> Code:
    """Reads a variable of a declared type."""
    read = reader(t)
    if read is None:
        return local(slot)
    convert = read
    return Code(lambda frame: convert(frame[slot]), 1, attribute=True)


def local(slot: int) -> Code:
    """Reads what the frame has at a place, such as a loop's variable."""
    return Code(lambda frame: frame[slot], 1, attribute=True)


# fields of declared objects


def field(operand: Run, name: str, t: Type, known_as: str) -> Run:
    """Reads a declared field; one that is null counts as absent. Errors call it what the expression calls it."""
    read = reader(t)

    def plain(frame: Frame) -> Any:
        value = operand(frame).get(name)
        if value is None:
            raise missing_key(known_as)
        return value

    if read is None:
        return plain
    convert = read
    return lambda frame: convert(plain(frame))


def has_field(operand: Run, name: str) -> Run:
    """Whether a declared field is there."""
    return lambda frame: operand(frame).get(name) is not None


# keys and indexes


def _place(at: Any) -> int:
    if type(at) is int or type(at) is UInt:
        return int(at)
    if type(at) is float:
        if at == int(at):
            return int(at)
        raise EvaluationError(f"unsupported index value {shown(at)} in list")
    raise EvaluationError(f"unsupported index type '{type_name(at)}' in list")


_NOTHING = object()


_KEYS = frozenset((str, int, UInt, bool, float))


def checked_key(key: Any) -> None:
    """Refuses what can never be an index or key. Raises EvaluationError: a list, null, and so on."""
    if type(key) not in _KEYS:
        raise EvaluationError(f"invalid qualifier type: {type_name(key)}")


def _find(value: Any, key: Any) -> Any:
    """What a list or map has at an index or key; _NOTHING if nothing."""
    if type(value) is dict:
        found = value.get(key, _NOTHING)
        if found is not _NOTHING and type(key) in (bool, int, UInt, float):
            return _checked(value, key, found)
        return found
    if isinstance(value, list):
        at = _place(key)
        return value[at] if 0 <= at < len(value) else _NOTHING
    return _NOTHING


def _checked(value: dict[Any, Any], key: Any, found: Any) -> Any:
    # To Python, true and 1 are one key.
    is_bool = type(key) is bool
    return found if any(k == key and (type(k) is bool) is is_bool for k in value) else _NOTHING


def _absent(value: Any, key: Any) -> EvaluationError:
    if isinstance(value, list):
        return EvaluationError(f"index out of bounds: {shown(key)}")
    return missing_key(key)


def get(value: Any, key: Any) -> Any:
    """What a value of any type has at an index or key; optionals give optionals. Raises EvaluationError: nothing."""
    checked_key(key)
    if type(value) is Optional:
        return get_optional(value, key)
    found = _find(value, key)
    if found is _NOTHING:
        raise _absent(value, key)
    return found


def get_optional(value: Any, key: Any) -> Optional:
    """The same as an optional, absent where there is nothing."""
    checked_key(key)
    if type(value) is Optional:
        if not value.present:
            return ABSENT
        value = value.value
    found = _find(value, key)
    return ABSENT if found is _NOTHING else Optional(found)


def string_key(operand: Run, name: str) -> Run:
    """Reads a key of a map or of a value whose type is known only at evaluation."""

    def run(frame: Frame) -> Any:
        value = operand(frame)
        if type(value) is dict:
            found = value.get(name, _NOTHING)
            if found is not _NOTHING:
                return found
            raise missing_key(name)
        return get(value, name)

    return run


def has_key(operand: Run, name: str) -> Run:
    """Whether a map has a key; a value that is no map has none."""

    def run(frame: Frame) -> bool:
        value = operand(frame)
        if type(value) is Optional:
            value = value.value if value.present else None
        return _find(value, name) is not _NOTHING

    return run


def index(operand: Run, at: Run) -> Run:
    """Reads by an index or key of any type."""

    def run(frame: Frame) -> Any:
        items, place = operand(frame), at(frame)
        if type(items) is list and type(place) is int and 0 <= place < len(items):
            return items[place]  # by far the most frequent
        return get(items, place)

    return run


def optional_index(operand: Run, at: Run) -> Run:
    """Reads by an index or key into an optional; charges only for what is there."""

    def run(frame: Frame) -> Optional:
        found = get_optional(operand(frame), at(frame))
        if found.present:
            frame[0] -= 1
        return found

    return run


def optional_field(operand: Run, name: str, target: Type, t: Type) -> Run:
    """Reads a field or key into an optional; charges only for what is there."""
    declared = isinstance(target, ObjectType)
    read = reader(t) if declared else None

    def run(frame: Frame) -> Optional:
        value = operand(frame)
        if type(value) is Optional:
            if not value.present:
                return ABSENT
            value = value.value
        found = _find(value, name)
        if found is _NOTHING or (declared and found is None):
            return ABSENT
        frame[0] -= 1
        return Optional(read(found) if read else found)

    return run
