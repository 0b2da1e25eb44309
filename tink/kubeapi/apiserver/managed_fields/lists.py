"""Lists whose items are told apart: sets of scalars, and lists of maps with keys (`x-kubernetes-list-type`).

They are compared and merged item by item, wherever the items stand (sigs.k8s.io/structured-merge-diff, package typed).
An item that stands twice, which only writers that do not apply can bring about, is owned and replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tink import golang
from tink.kubeapi.apiserver.managed_fields.fields import (
    Fields,
    is_member,
    key_element,
    literal,
    render_element,
)
from tink.kubeapi.apiserver.managed_fields.types import Difference, ItemError, Type, in_order, report, same


class List(Type):
    """A set of scalars, or a list of maps that are told apart by `keys`, with their defaults."""

    def __init__(self, keys: Sequence[str], element: Type, defaults: Mapping[str, Any]) -> None:
        self.keys = tuple(keys)
        self.element = element
        self.defaults = defaults
        self.settles = element.settles
        self.loose = element.loose

    def item(self, item: Any) -> str:
        """Give the path element of an item. Raises ItemError."""
        if not self.keys:
            if isinstance(item, dict):
                raise ItemError("associative list without keys has an element that's a map type")
            if isinstance(item, list):
                raise ItemError("not supported: associative list with lists as elements")
            if item is None:
                raise ItemError("associative list without keys has an element that's an explicit null")
            return "v:" + literal(item)
        if item is None:
            raise ItemError("associative list with keys may not have a null element")
        if not isinstance(item, dict):
            raise ItemError("associative list with keys may not have non-map elements")
        found = {}
        for key in self.keys:
            if key in item:
                found[key] = item[key]
            elif self.defaults.get(key) is not None:
                found[key] = self.defaults[key]
        if not found:
            listed = " ".join(map(golang.quote, self.keys))
            raise ItemError(
                f"associative list with keys has an element that omits all key fields [{listed}] "
                "(and doesn't have default values for any key fields)"
            )
        return key_element(found)

    def _grouped(self, items: Sequence[Any]) -> dict[str, list[Any]]:
        groups: dict[str, list[Any]] = {}
        try:
            for item in items:
                element = self.item(item)
                if element in groups:
                    groups[element].append(item)
                else:
                    groups[element] = [item]
        except ItemError as error:
            raise ItemError(f"element {sum(map(len, groups.values()))}: {error}") from error
        return groups

    def everything(self, value: Any) -> Fields:
        """Give all items, each by what tells it apart."""
        if not value or not isinstance(value, list):
            return {}
        groups = self._grouped(value)
        found: Fields = {".": {}}
        for element in sorted(groups):
            items = groups[element]
            # What stands twice is owned as a whole.
            found[element] = self.element.everything(items[0]) if len(items) == 1 else {}
        return found

    def applied(self, value: Any) -> Fields | None:
        """Give the items, each of which is owned itself."""
        if not value or not isinstance(value, list):
            return None
        groups = self._grouped(value)
        found: Fields = {}
        for element in sorted(groups):
            items = groups[element]
            below = self.element.applied(items[0]) if len(items) == 1 else None
            found[element] = below if below is not None and is_member(below) else {".": {}, **below} if below else {}
        return found

    def compare(self, old: Any, new: Any) -> Difference:
        """Compare item by item, wherever the items stand."""
        if not old and not new:
            return {}, None
        old, new = old or [], new or []
        if not isinstance(old, list) or not isinstance(new, list):
            return {}, None
        before, after = self._grouped(old), self._grouped(new)
        changed: Fields = {}
        removed: Fields = {}
        for element, items in after.items():
            was = before.get(element)
            if was is None:
                changed[element] = self.element.everything(items[0]) if len(items) == 1 else {}
            elif len(was) > 1 or len(items) > 1:
                self._compare_twice(element, was, items, changed, removed)
            elif was[0] != items[0] or (self.loose and not same(was[0], items[0])):
                more, less = self.element.compare(was[0], items[0])
                if more is not None:
                    changed[element] = more
                if less is not None:
                    removed[element] = less
        for element, was in before.items():
            if element not in after:
                removed[element] = self.element.everything(was[0]) if len(was) == 1 else {}
        return in_order(changed), in_order(removed)

    def _compare_twice(self, element: str, was: list[Any], items: list[Any], changed: Fields, removed: Fields) -> None:
        """Compare what stands more than once, before or after."""
        if len(was) > 1 and len(items) > 1:
            if not same(was, items):
                changed[element] = {}
        elif len(was) > 1:
            changed[element] = self.element.everything(items[0])
            removed[element] = {}
        else:
            removed[element] = self.element.everything(was[0])
            changed[element] = {}

    def merge(self, old: Any, new: Any) -> Any:
        """Merge item by item."""
        if not old and not new:
            return new
        if not isinstance(old, list):
            return new or old
        if not isinstance(new, list):
            return old if new is None else new
        return self._merge(old, new)

    def _merge(self, old: list[Any], new: list[Any]) -> list[Any]:
        """Merge item by item: in the order of the new list, with what only the old one has where it was."""
        theirs = [self.item(item) for item in new]
        ours = [self.item(item) for item in old]
        after = dict(zip(theirs, new, strict=True))
        before: dict[str, Any] = {}
        for element, item in zip(ours, old, strict=True):
            before[element] = None if element in before else item  # what stands twice is not merged
        shared = [element for element in theirs if element in before]
        shared.reverse()
        awaited = shared.pop() if shared else None
        done: set[str] = set()
        out: list[Any] = []
        left = right = 0
        while left < len(ours) or right < len(theirs):
            if left < len(ours) and right < len(theirs):
                element = ours[left]
                if element == theirs[right]:
                    done.add(element)
                    out.append(self.element.merge(before[element], after[element]))
                    left, right = left + 1, right + 1
                    awaited = shared.pop() if shared else None
                    continue
                if element in after and awaited is not None and awaited != element:
                    left += 1  # it will come in another round
                    continue
            if left < len(ours):
                element = ours[left]
                if element not in after:
                    out.append(old[left])
                    left += 1
                    continue
                if element in done:
                    left += 1
            if right < len(theirs):
                element = theirs[right]
                done.add(element)
                out.append(self.element.merge(before[element], after[element]) if element in before else new[right])
                right += 1
                if awaited == element:
                    awaited = shared.pop() if shared else None
        return out

    def without(self, value: Any, fields: Fields) -> Any:
        """Leave out items that are in the set, and what is below the others."""
        if not value or not isinstance(value, list):
            return None
        out = []
        for item in value:
            below = fields.get(self.item(item))
            if below is None:
                out.append(item)
            elif not is_member(below):
                out.append(self.element.without(item, below))
        return out or None

    def named(self, fields: Fields) -> Fields:
        """Add the fields of structs that are on the way."""
        return {
            element: self.element.named(below) if below and element.startswith("k:") else below
            for element, below in fields.items()
        }

    def settle(self, fields: Fields) -> Fields:
        """Settle the items."""
        if not self.settles:
            return fields
        out = None
        for element, below in fields.items():
            settled = self.element.settle(below) if below else below
            if settled is not below:
                out = out or dict(fields)
                out[element] = settled
        return out or fields

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Find items that cannot be told apart, and what is wrong with the others."""
        if value is None:
            return
        if not isinstance(value, list):
            report(found, path, f"expected list, got {golang.json_kind(value)}")
            return
        seen = set()
        for index, item in enumerate(value):
            try:
                element = self.item(item)
            except ItemError as error:
                report(found, path, f"element {index}: {error}")
                return
            if element in seen:
                report(found, path, f"duplicate entries for key {render_element(element)}")
            seen.add(element)
            self.element.check(item, path + render_element(element), found)
