"""YAML to JSON-like values by way of libyaml's nodes: with Kubernetes' scalar rules, and with the line of every field.

The same values as `tink.api.yaml` gives, at half the cost, because nothing of PyYAML's constructor runs: a rack of
10,000 machines is read in seconds. `tink.convert.comments` uses the nodes' places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import yaml
from yaml._yaml import CParser

from tink.api.yaml import YamlError, check_depth, plain_scalar

_MAX_VALUES = 500_000
"""So many values may come of any document, however short it is; of a longer one as many as it has bytes."""
_MAX_DEPTH = 100
_TAG = "tag:yaml.org,2002:"

_STARTS = re.compile(r"^[ ]*(?:[-?:][ \t]+)*", re.MULTILINE)
"""What stands before a line's first scalar: the column of its innermost block collection, at most."""

_scalar = lru_cache(maxsize=4096)(plain_scalar)


def _as_key(value: Any) -> str:
    """JSON's keys are strings; Kubernetes writes others as JSON would."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


@lru_cache(maxsize=4096)
def _name(text: str) -> str:
    return _as_key(plain_scalar(text))


class _Parser(CParser):
    """libyaml's parser and composer without tags: the rules are applied to the nodes."""

    def resolve(self, kind: object, value: object, implicit: object) -> None:
        """No tag but the explicit ones."""

    def ascend_resolver(self) -> None:
        """Nothing to do."""

    def descend_resolver(self, *_arguments: object) -> None:
        """Nothing to do."""


class NodeError(YamlError):
    """Text that is not YAML; `line` is counted from 1 in the text, 0 if unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def compose(text: str) -> Iterator[yaml.Node]:
    """The documents of a text as nodes. Raises NodeError."""
    try:
        if not _certainly_shallow(text):
            check_depth(text)
        parser = _Parser(text)
        while parser.check_node():
            node = parser.get_node()
            if node is not None:
                yield node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise NodeError(what or "not YAML", mark.line + 1 if mark else 0) from error
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise NodeError(f"{error.reason} (here 0x{error.character:02x})", line) from error
    except yaml.YAMLError as error:
        raise NodeError(" ".join(str(error).split())) from error
    except YamlError as error:
        raise NodeError(str(error)) from error


def value(root: yaml.Node, size: int = 0) -> Any:
    """A node as a JSON-like value; what aliases repeat is one object. `size` is the length of its text.

    Raises NodeError: a key given twice, a tag or a number that JSON does not know, a value that contains itself, more
    values than such a text can honestly hold.
    """
    return _Construction(max(_MAX_VALUES, size)).value(root, 0)


class _Construction:
    """Makes the value of one document, and counts what aliases blow it up to (the "billion laughs")."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._done: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()
        self._spent = 0

    def value(self, node: yaml.Node, depth: int) -> Any:
        if node.__class__ is yaml.ScalarNode:
            self._spent += 1
            if node.tag is None:
                return node.value if node.style else self._plain(_scalar, node)
            return _tagged(node)
        return self._collection(node, depth)

    def _plain(self, meaning: Callable[[str], Any], node: yaml.ScalarNode) -> Any:
        try:
            return meaning(node.value)
        except ValueError as error:
            raise _at(node, str(error)) from error

    def _collection(self, node: yaml.Node, depth: int) -> Any:
        """A collection that was made already is an alias' target: it counts again with all that it holds."""
        key = id(node)
        if key in self._done:
            made, cost = self._done[key]
            self._spent += cost
            self._check(node, depth)
            return made
        if key in self._open:
            raise _at(node, "the value contains itself, by an alias")
        self._open.add(key)
        before = self._spent
        self._spent += 1
        self._check(node, depth)
        made = self._mapping(node, depth + 1) if isinstance(node, yaml.MappingNode) else self._sequence(node, depth + 1)
        self._open.discard(key)
        self._done[key] = made, self._spent - before
        return made

    def _check(self, node: yaml.Node, depth: int) -> None:
        if self._spent > self._budget:
            raise _at(node, f"more than {self._budget} values, counting what aliases repeat")
        if depth > _MAX_DEPTH:
            raise _at(node, f"nested deeper than {_MAX_DEPTH} levels, counting what aliases repeat")

    def _sequence(self, node: yaml.Node, depth: int) -> list[Any]:
        if node.tag not in (None, "!", _TAG + "seq"):
            raise _at(node, f"the tag {node.tag} has no meaning here: take it out")
        return [self.value(item, depth) for item in node.value]

    def _mapping(self, node: yaml.Node, depth: int) -> dict[str, Any]:
        if node.tag not in (None, "!", _TAG + "map"):
            raise _at(node, f"the tag {node.tag} has no meaning here: take it out")
        mapping: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        for key_node, value_node in node.value:
            key = key_node.value
            if key == "<<" and key_node.tag is None and not key_node.style:
                merged += self._merged(value_node, depth)
                continue
            if key_node.__class__ is not yaml.ScalarNode or key_node.tag is not None:
                key = self._key(key_node)
            else:
                self._spent += 1
                if not key_node.style:
                    key = self._plain(_name, key_node)
            if key in mapping:
                raise _at(key_node, f"key {key!r} is given twice")
            if value_node.__class__ is yaml.ScalarNode and value_node.tag is None:
                # Most values by far, so without the call.
                self._spent += 1
                mapping[key] = value_node.value if value_node.style else self._plain(_scalar, value_node)
            else:
                mapping[key] = self.value(value_node, depth)
        for source in merged:
            for key, item in source.items():
                mapping.setdefault(key, item)
        return mapping

    def _merged(self, node: yaml.Node, depth: int) -> list[dict[str, Any]]:
        found = self.value(node, depth)
        sources = found if isinstance(found, list) else [found]
        if not all(isinstance(source, dict) for source in sources):
            raise _at(node, "what << merges must be a mapping, or a list of mappings")
        return sources

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _at(node, "a key must be a string")
        return _as_key(self.value(node, 0))


def _tagged(node: yaml.ScalarNode) -> Any:
    if node.tag in ("!", _TAG + "str"):
        return node.value
    kind = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}.get(node.tag.removeprefix(_TAG))
    if kind is None:
        raise _at(node, f"the tag {node.tag} has no meaning here: take it out")
    try:
        made = plain_scalar(node.value)
    except ValueError as error:
        raise _at(node, str(error)) from error
    if not isinstance(made, kind) or (isinstance(made, bool) and kind is not bool):  # type: ignore[arg-type] # a type or types
        raise _at(node, f"{node.value!r} is not what its tag {node.tag} says")
    return made


def _at(node: yaml.Node, message: str) -> NodeError:
    return NodeError(message, node.start_mark.line + 1)


def _certainly_shallow(text: str) -> bool:
    """Whether the text cannot nest deeper than libyaml's composer bears, seen without parsing it.

    A block collection needs a column of its own for each level but every second; a flow collection a bracket.
    """
    brackets = text.count("[") + text.count("{")
    if brackets > _MAX_DEPTH // 2:
        return False
    return all(len(start) <= _MAX_DEPTH // 4 for start in _STARTS.findall(text))
