"""A YAML text as libyaml's nodes: for those who must know where each field stands, or who change it before it is read.

Values come from `tink.api.yaml_values` here, too: nodes are turned back into the events that they were made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tink.api.yaml import MAX_BYTES, MAX_RATIO, Parser, as_yaml_error, check_depth
from tink.api.yaml_values import Document


def compose(text: str) -> Iterator[yaml.Node]:
    """The documents of a text as nodes. Raises YamlError."""
    try:
        check_depth(text)
        parser = Parser(text)
        while parser.check_node():
            node = parser.get_node()
            if node is not None:
                yield node
    except (yaml.YAMLError, ValueError) as error:
        raise as_yaml_error(error, text) from error


def value(root: yaml.Node, size: int = 0) -> Any:
    """A node as a JSON-like value; what aliases repeat is one object. `size` is the length of its text.

    Raises YamlError: a key given twice, a tag or a number that JSON does not know, a value that contains itself, more
    values than such a text can honestly hold.
    """
    document = Document(max(MAX_BYTES, MAX_RATIO * size))
    for event in _events(root, set()):
        document.take(event)
    return document.value()


def _events(node: yaml.Node, seen: set[int]) -> Iterator[yaml.Event]:
    """The events of a node; a collection that comes again is an alias."""
    marks = node.start_mark, node.end_mark
    if isinstance(node, yaml.ScalarNode):
        yield yaml.ScalarEvent(None, node.tag, (True, True), node.value, *marks, style=node.style)
        return
    anchor = str(id(node))
    if id(node) in seen:
        yield yaml.AliasEvent(anchor, *marks)
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield yaml.MappingStartEvent(anchor, node.tag, True, *marks)
        for key, item in node.value:
            yield from _events(key, seen)
            yield from _events(item, seen)
        yield yaml.MappingEndEvent(*marks)
    else:
        yield yaml.SequenceStartEvent(anchor, node.tag, True, *marks)
        for item in node.value:
            yield from _events(item, seen)
        yield yaml.SequenceEndEvent(*marks)
