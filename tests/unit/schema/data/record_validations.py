"""Asks a real kube-apiserver what CEL rules say about objects, new and changed, and writes it down.

    python -m tests.record validations

Objects that an update starts from are stored under a schema that allows everything, which then gets its rules; so
values that have always been wrong are among them. `test_validations_recorded.py` compares.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Peer
from tests.unit.schema.data.record_definitions import INTEGER, STRING, Raw, items, obj, ruled

Case = tuple[str, Any, Any]
"""Name, spec of the new object, spec of the old one (None: the object is created)."""
KIND, KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
KEEP = "x-kubernetes-preserve-unknown-fields"


def groups() -> Iterator[tuple[str, Raw, list[Case]]]:
    """Give schemas of `spec`, and what is asked about them."""
    yield from _plain()
    yield from _messages()
    yield from _types()
    yield from _transitions()
    yield from _ratcheting()
    yield from _budgets()


def _plain() -> Iterator[tuple[str, Raw, list[Case]]]:
    schema = ruled(
        obj(n=INTEGER, a=STRING, o=ruled(obj(b=INTEGER), "self.b > 1")),
        "self.n > 1",
        {"rule": "!has(self.a) || self.a.startsWith('x')", "message": "a must start with x"},
        {"rule": "self.n < 100", "message": "  too many  ", "reason": "FieldValueForbidden", "fieldPath": ".n"},
        {"rule": "self.n != 7", "reason": "FieldValueRequired", "fieldPath": ".o.b"},
        {"rule": "self.n != 8", "reason": "FieldValueDuplicate", "message": "m"},
        {"rule": "self.n != 9", "reason": "FieldValueInvalid", "message": "m", "fieldPath": "['a']"},
    )
    yield (
        "plain",
        schema,
        [
            ("keeps all", {"n": 5, "a": "xy", "o": {"b": 2}}, None),
            ("breaks one", {"n": 0}, None),
            ("breaks two", {"n": 0, "a": "y"}, None),
            ("breaks below", {"n": 5, "o": {"b": 0}}, None),
            ("breaks above and below", {"n": 1, "o": {"b": 0}}, None),
            ("forbidden with path", {"n": 100}, None),
            ("required with path", {"n": 7}, None),
            ("duplicate of an object", {"n": 8}, None),
            ("path in brackets", {"n": 9}, None),
            ("field is missing", {"a": "x"}, None),
            ("field below is missing", {"n": 5, "o": {}}, None),
            ("type is wrong", {"n": "5"}, None),
            ("type is wrong elsewhere", {"n": 0, "a": 5}, None),
            ("update keeps all", {"n": 5}, {"n": 6}),
            ("update breaks one", {"n": 0}, {"n": 6}),
        ],
    )
    scalar = obj(
        s=ruled(STRING, "self == 'x'"),
        i=ruled(INTEGER, "self == 1"),
        f=ruled({"type": "number"}, "self < 1.5"),
        b=ruled({"type": "boolean"}, "self"),
        d=ruled(STRING, {"rule": "self != 'dup'", "reason": "FieldValueDuplicate"}),
        l=ruled(items(STRING), "self.size() < 2"),
        m=ruled({"type": "object", "additionalProperties": STRING}, "self.size() < 2"),
        e=ruled({"x-kubernetes-int-or-string": True}, "type(self) == int ? self > 1 : self.startsWith('x')"),
        nul=ruled({"type": "string", "nullable": True}, "self == 'x'"),
    )
    yield (
        "scalars",
        scalar,
        [
            ("string", {"s": "y"}, None),
            ("string with quotes", {"s": 'a"b\\c\n<>&ä\x07'}, None),
            ("long string", {"s": "y" * 2000}, None),
            ("integer", {"i": 2}, None),
            ("float", {"f": 2.5}, None),
            ("large float", {"f": 1e21}, None),
            ("small difference", {"f": 1.5}, None),
            ("whole float", {"f": 2}, None),
            ("bool", {"b": False}, None),
            ("duplicate", {"d": "dup"}, None),
            ("list", {"l": ["a", "b"]}, None),
            ("map", {"m": {"a": "1", "b": "2"}}, None),
            ("integer of either", {"e": 1}, None),
            ("string of either", {"e": "y"}, None),
            ("null is not checked", {"nul": None}, None),
            ("null can be checked elsewhere", {"nul": "y"}, None),
        ],
    )
    many = obj(
        l=items(ruled(obj(n=INTEGER), "self.n > 1"), maxItems=10),
        m={"type": "object", "maxProperties": 5, "additionalProperties": ruled(obj(n=INTEGER), "self.n > 1")},
        deep=items(items(ruled(INTEGER, "self > 1"), maxItems=3), maxItems=3),
        k={"type": "object", "maxProperties": 5, "additionalProperties": ruled(INTEGER, "self > 1")},
        **{"1x": obj(y=ruled(INTEGER, "self > 1")), "a-b": ruled(INTEGER, "self > 1")},
    )
    yield (
        "many",
        many,
        [
            ("items", {"l": [{"n": 1}, {"n": 2}, {"n": 0}]}, None),
            ("entries", {"m": {"a.b/c": {"n": 0}}}, None),
            ("items of items", {"deep": [[5], [5, 0]]}, None),
            ("scalars of a map", {"k": {"x": 1}}, None),
            ("names that are not identifiers", {"1x": {"y": 0}, "a-b": 0}, None),
            ("an error in an item", {"l": [{}]}, None),
        ],
    )


def _messages() -> Iterator[tuple[str, Raw, list[Case]]]:
    def made(expression: str, **more: Any) -> Raw:
        return {"rule": "self.n > 1", "messageExpression": expression, **more}

    fields = obj(n=INTEGER, s=STRING, l=items(STRING, maxItems=5))
    told = obj(
        a=ruled(fields, made("'n is %d'.format([self.n])")),
        b=ruled(fields, made("self.s", message="else")),
        c=ruled(fields, made("self.s")),
        d=ruled(fields, made("['a', 'b'][1 / (self.n - 1)]", message="fallback")),
        e=ruled(fields, made("self.l[3]", message="fallback")),
        f=ruled(INTEGER, {"rule": "self > 1", "messageExpression": "'got %d'.format([self])"}),
        g=ruled(fields, made("'a'", reason="FieldValueDuplicate"), made("'b'", reason="FieldValueForbidden")),
    )
    yield (
        "messages",
        told,
        [
            ("expression", {"a": {"n": 0}}, None),
            ("blank expression falls back", {"b": {"n": 0, "s": "  "}}, None),
            ("blank expression falls back to the rule", {"c": {"n": 0, "s": " "}}, None),
            ("empty expression falls back", {"b": {"n": 0, "s": ""}}, None),
            ("line break falls back", {"b": {"n": 0, "s": "a\nb"}}, None),
            ("line break at the end is cut", {"b": {"n": 0, "s": "a\n"}}, None),
            ("carriage return stays", {"b": {"n": 0, "s": "a\rb"}}, None),
            ("long message falls back", {"b": {"n": 0, "s": "x" * 5121}}, None),
            ("longest message", {"b": {"n": 0, "s": "x" * 5120}}, None),
            ("error falls back", {"d": {"n": 1}}, None),
            ("missing field falls back", {"b": {"n": 0}}, None),
            ("missing item falls back", {"e": {"n": 0, "l": []}}, None),
            ("formatted", {"f": 0}, None),
            ("with reasons", {"g": {"n": 0}}, None),
        ],
    )


def _types() -> Iterator[tuple[str, Raw, list[Case]]]:
    whole = {"type": "object", "x-kubernetes-embedded-resource": True, KEEP: True}
    typed = obj(
        t=ruled({"type": "string", "format": "date-time"}, "self > timestamp('2020-01-01T00:00:00Z')"),
        day=ruled({"type": "string", "format": "date"}, "self.getFullYear() > 2000"),
        dur=ruled({"type": "string", "format": "duration"}, "self < duration('1h')"),
        by=ruled({"type": "string", "format": "byte"}, "self.size() > 3"),
        em=ruled(whole, "self.metadata.name == 'x' && self.kind == 'Pod'"),
        kept=ruled({**obj(a=STRING), KEEP: True}, "self.a == 'x'"),
        either=ruled({"x-kubernetes-int-or-string": True}, "self + 1 > 5"),
        over=ruled(INTEGER, "self + 9223372036854775807 > 1"),
        zero=ruled(INTEGER, "5 / self > 1"),
        idx=ruled(items(STRING, maxItems=5), "self[2] == 'x'"),
        key=ruled({"type": "object", "maxProperties": 5, "additionalProperties": STRING}, "self['k'] == 'x'"),
        rx=ruled({"type": "string", "maxLength": 20}, "self.matches(self)"),
        ip=ruled({"type": "string", "maxLength": 40}, "ip(self).family() == 4"),
        url=ruled({"type": "string", "maxLength": 40}, "url(self).getScheme() == 'https'"),
        st=ruled(items(STRING, maxItems=5, **{KIND: "set"}), "self == ['a', 'b']"),
        esc=ruled(obj(**{"a-b": STRING, "namespace": STRING}), "self.a__dash__b == self.__namespace__"),
        opt=ruled(obj(x=STRING), "self.?x.orValue('none') != 'none'"),
    )
    yield (
        "types",
        typed,
        [
            ("old time", {"t": "2019-01-01T00:00:00Z"}, None),
            ("time with zone", {"t": "2020-01-01T00:30:00+01:00"}, None),
            ("fine time", {"t": "2021-01-01T00:00:00.5Z"}, None),
            ("day", {"day": "1999-12-31"}, None),
            ("duration", {"dur": "90m"}, None),
            ("bytes", {"by": "YWJj"}, None),
            ("embedded", {"em": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "y"}}}, None),
            ("embedded without name", {"em": {"apiVersion": "v1", "kind": "Pod"}}, None),
            ("kept", {"kept": {"a": "y", "b": 1}}, None),
            ("either is a number", {"either": 1}, None),
            ("either is a string", {"either": "1"}, None),
            ("overflow", {"over": 1}, None),
            ("division", {"zero": 0}, None),
            ("index", {"idx": ["a"]}, None),
            ("key", {"key": {"j": "x"}}, None),
            ("regex of the object", {"rx": "("}, None),
            ("not an ip", {"ip": "x"}, None),
            ("not a url", {"url": "x y"}, None),
            ("set in another order", {"st": ["b", "a"]}, None),
            ("other set", {"st": ["b"]}, None),
            ("escaped names", {"esc": {"a-b": "1", "namespace": "2"}}, None),
            ("optional", {"opt": {}}, None),
            ("wrong format and rules", {"t": "x", "zero": 0}, None),
        ],
    )


def _transitions() -> Iterator[tuple[str, Raw, list[Case]]]:
    entry = {
        **obj(k=STRING, n=INTEGER, v=ruled(INTEGER, {"rule": "self >= oldSelf", "message": "v must not fall"})),
        "required": ["k"],
    }
    schema = obj(
        a=ruled(STRING, {"rule": "self == oldSelf", "message": "a is immutable"}),
        o=ruled(obj(n=INTEGER), "self.n > oldSelf.n"),
        l=items(ruled(entry, "self.n == oldSelf.n"), maxItems=5, **{KIND: "map", KEYS: ["k"]}),
        two=items(
            {**obj(k=STRING, p=INTEGER, v=ruled(INTEGER, "self >= oldSelf")), "required": ["k", "p"]},
            maxItems=5,
            **{KIND: "map", KEYS: ["k", "p"]},
        ),
        m={"type": "object", "maxProperties": 5, "additionalProperties": ruled(INTEGER, "self >= oldSelf")},
        at=ruled(items(INTEGER, maxItems=5), "self.size() >= oldSelf.size()"),
        opt=ruled(
            INTEGER,
            {
                "rule": "oldSelf.hasValue() ? self > oldSelf.value() : self == 1",
                "optionalOldSelf": True,
                "messageExpression": "'must be more than %s'.format([oldSelf.orValue(0)])",
            },
        ),
        st=ruled(items(STRING, maxItems=5, **{KIND: "set"}), "oldSelf.all(x, x in self)"),
        date=ruled({"type": "string", "format": "date-time"}, "self > oldSelf"),
    )
    yield (
        "transitions",
        schema,
        [
            ("create runs no transition rule", {"a": "x", "o": {"n": 1}, "m": {"k": 1}}, None),
            ("immutable changes", {"a": "y"}, {"a": "x"}),
            ("immutable stays", {"a": "x"}, {"a": "x"}),
            ("immutable appears", {"a": "x"}, {}),
            ("immutable goes", {}, {"a": "x"}),
            ("object stays the same", {"o": {"n": 1}}, {"o": {"n": 1}}),
            ("object grows", {"o": {"n": 2}}, {"o": {"n": 1}}),
            ("old object lacks the field", {"o": {"n": 2}}, {"o": {}}),
            (
                "items move",
                {"l": [{"k": "b", "n": 2, "v": 5}, {"k": "a", "n": 1, "v": 0}]},
                {"l": [{"k": "a", "n": 1, "v": 1}, {"k": "b", "n": 2, "v": 4}]},
            ),
            ("new item", {"l": [{"k": "c", "n": 9}]}, {"l": [{"k": "a", "n": 1}]}),
            ("item changes", {"l": [{"k": "a", "n": 2}]}, {"l": [{"k": "a", "n": 1}]}),
            (
                "two keys",
                {"two": [{"k": "a", "p": 1, "v": 1}, {"k": "a", "p": 2, "v": 1}]},
                {"two": [{"k": "a", "p": 2, "v": 2}, {"k": "a", "p": 1, "v": 0}]},
            ),
            ("entries of a map", {"m": {"a": 1, "b": 0}}, {"m": {"a": 2}}),
            ("list shrinks", {"at": [1]}, {"at": [1, 2]}),
            ("optional create", {"opt": 2}, None),
            ("optional create is right", {"opt": 1}, None),
            ("optional update", {"opt": 2}, {"opt": 3}),
            ("optional appears", {"opt": 2}, {}),
            ("set loses an item", {"st": ["a"]}, {"st": ["b", "a"]}),
            ("set gains an item", {"st": ["c", "a"]}, {"st": ["a"]}),
            ("time goes back", {"date": "2020-01-01T00:00:00Z"}, {"date": "2020-01-02T00:00:00Z"}),
        ],
    )


def _ratcheting() -> Iterator[tuple[str, Raw, list[Case]]]:
    entry = {
        **obj(k=STRING, v=ruled(STRING, "self == 'x'"), o=ruled(obj(a=INTEGER, b=INTEGER), "self.a > 1")),
        "required": ["k"],
    }
    schema = obj(
        a=ruled(STRING, "self == 'x'"),
        b=STRING,
        o=ruled(obj(n=INTEGER, s=STRING), "self.n > 1"),
        l=items(entry, maxItems=5, **{KIND: "map", KEYS: ["k"]}),
        at=items(ruled(STRING, "self == 'x'"), maxItems=5),
        ato=items(obj(s=ruled(STRING, "self == 'x'")), maxItems=5),
        m={"type": "object", "maxProperties": 5, "additionalProperties": ruled(STRING, "self == 'x'")},
        kept=ruled({**obj(a=STRING), KEEP: True}, "self.a == 'x'"),
        opt=ruled(INTEGER, {"rule": "self > 5 && !oldSelf.hasValue()", "optionalOldSelf": True}),
        err=ruled(INTEGER, "5 / self > 1"),
        mx={"type": "string", "maxLength": 2},
        en={"type": "string", "enum": ["x"]},
        mn={"type": "integer", "minimum": 5},
        req={**obj(x=STRING, y=STRING), "required": ["x"]},
        st=items(STRING, maxItems=5, **{KIND: "set"}),
        pat={"type": "object", "additionalProperties": {"type": "string", "pattern": "^a"}},
        ml=items(
            {**obj(k=STRING, s={"type": "string", "maxLength": 2}), "required": ["k"]}, **{KIND: "map", KEYS: ["k"]}
        ),
        al=items({"type": "string", "maxLength": 2}),
        ty=INTEGER,
    )
    yield (
        "ratcheting",
        schema,
        [
            ("wrong stays", {"a": "y", "b": "2"}, {"a": "y", "b": "1"}),
            ("wrong changes", {"a": "z"}, {"a": "y"}),
            ("wrong appears", {"a": "y"}, {}),
            ("object stays", {"o": {"n": 0, "s": "a"}, "b": "2"}, {"o": {"n": 0, "s": "a"}}),
            ("object changes elsewhere", {"o": {"n": 0, "s": "b"}}, {"o": {"n": 0, "s": "a"}}),
            ("item stays", {"l": [{"k": "a", "v": "y"}], "b": "2"}, {"l": [{"k": "a", "v": "y"}]}),
            (
                "item moves",
                {"l": [{"k": "b", "v": "x"}, {"k": "a", "v": "y"}]},
                {"l": [{"k": "a", "v": "y"}]},
            ),
            ("item changes elsewhere", {"l": [{"k": "a", "v": "y", "o": {"a": 5}}]}, {"l": [{"k": "a", "v": "y"}]}),
            (
                "object in an item",
                {"l": [{"k": "a", "o": {"a": 0, "b": 2}}]},
                {"l": [{"k": "a", "o": {"a": 0, "b": 1}}]},
            ),
            ("list stays", {"at": ["y", "z"], "b": "2"}, {"at": ["y", "z"]}),
            ("list changes", {"at": ["y", "x"]}, {"at": ["y", "z"]}),
            ("list of objects stays", {"ato": [{"s": "y"}], "b": "2"}, {"ato": [{"s": "y"}]}),
            ("list of objects changes", {"ato": [{"s": "y"}, {"s": "x"}]}, {"ato": [{"s": "y"}]}),
            ("entry stays", {"m": {"a": "y", "b": "x"}}, {"m": {"a": "y"}}),
            ("entry changes", {"m": {"a": "z"}}, {"m": {"a": "y"}}),
            ("kept object stays", {"kept": {"a": "y"}, "b": "2"}, {"kept": {"a": "y"}}),
            ("kept object with more stays", {"kept": {"a": "y", "q": 1}, "b": "2"}, {"kept": {"a": "y", "q": 1}}),
            ("rules with oldSelf are never spared", {"opt": 5, "b": "2"}, {"opt": 5}),
            ("errors are never spared", {"err": 0, "b": "2"}, {"err": 0}),
            ("maxLength stays", {"mx": "abc", "b": "2"}, {"mx": "abc"}),
            ("maxLength changes", {"mx": "abcd"}, {"mx": "abc"}),
            ("enum stays", {"en": "y", "b": "2"}, {"en": "y"}),
            ("enum changes", {"en": "z"}, {"en": "y"}),
            ("minimum stays", {"mn": 1, "b": "2"}, {"mn": 1}),
            ("minimum changes beside a rule", {"mn": 2, "a": "z"}, {"mn": 1, "a": "y"}),
            ("required stays", {"req": {"y": "1"}, "b": "2"}, {"req": {"y": "1"}}),
            ("required changes elsewhere", {"req": {"y": "2"}}, {"req": {"y": "1"}}),
            ("duplicates stay", {"st": ["a", "a"], "b": "2"}, {"st": ["a", "a"]}),
            ("other duplicates", {"st": ["b", "b"]}, {"st": ["a", "a"]}),
            ("duplicates appear", {"st": ["b", "b"]}, {"st": ["b"]}),
            ("pattern of an entry stays", {"pat": {"q.r": "b", "s": "a"}}, {"pat": {"q.r": "b"}}),
            ("pattern of an entry changes", {"pat": {"q.r": "c"}}, {"pat": {"q.r": "b"}}),
            (
                "maxLength in an item stays",
                {"ml": [{"k": "b"}, {"k": "a", "s": "abc"}]},
                {"ml": [{"k": "a", "s": "abc"}]},
            ),
            ("maxLength in an atomic list", {"al": ["abc", "a"]}, {"al": ["abc"]}),
            ("maxLength in an atomic list stays", {"al": ["abc"], "b": "2"}, {"al": ["abc"]}),
            ("type stays", {"ty": "x", "b": "2"}, {"ty": "x"}),
            ("type stays beside a broken rule", {"ty": "x", "a": "z"}, {"ty": "x"}),
        ],
    )


def _budgets() -> Iterator[tuple[str, Raw, list[Case]]]:
    yield (
        "call budget",
        obj(l=ruled(items(INTEGER, maxItems=700), "self.all(x, self.all(y, x + y + x + y > -1))")),
        [
            ("small", {"l": [1] * 10}, None),
            ("much", {"l": [1] * 700}, None),
            ("less", {"l": [1] * 500}, None),
        ],
    )
    dear = {"rule": "self.all(x, self.all(y, x + y + x + y > -1))", "message": "dear"}
    yield (
        "object budget",
        obj(l=ruled(items(INTEGER, maxItems=700), *[dear] * 16)),
        [("much", {"l": [1] * 280}, None), ("little", {"l": [1] * 10}, None)],
    )
    loud = {
        "rule": "false",
        "messageExpression": "'%d'.format([self.map(x, self.map(y, x + y + x + y).size()).size()])",
        "message": "x",
    }
    yield (
        "message budget",
        obj(l=ruled(items(INTEGER, maxItems=500), loud)),
        [("small", {"l": [1] * 3}, None), ("much", {"l": [1] * 500}, None)],
    )


def definition(index: int, spec: Raw | None) -> Raw:
    """Give a definition for a group: with its schema, or with one that allows everything."""
    root: Raw = {"type": "object", KEEP: True} if spec is None else {"type": "object", "properties": {"spec": spec}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things{index}.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Cluster",
            "names": {"plural": f"things{index}", "kind": f"Thing{index}"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": root}}],
        },
    }


def thing(index: int, name: str, spec: Any, version: str = "") -> Raw:
    """Give an object of a group."""
    metadata = {"name": name, **({"resourceVersion": version} if version else {})}
    return {"apiVersion": "example.org/v1", "kind": f"Thing{index}", "metadata": metadata, "spec": spec}


def record(kubeconfig: Path) -> None:
    """Ask, and write the answers down."""
    peer = Peer(kubeconfig)
    asked = list(groups())
    for index in range(len(asked)):
        peer.ask("POST", DEFINITIONS, definition(index, None)).must()
    time.sleep(3)  # until they are served
    versions = {}
    for index, (_, _, cases) in enumerate(asked):
        for number, (_, _, old) in enumerate(cases):
            if old is not None:
                made = peer.ask("POST", f"/apis/example.org/v1/things{index}", thing(index, f"t{number}", old)).must()
                versions[index, number] = made["metadata"]["resourceVersion"]
    for index, (_, schema, _) in enumerate(asked):
        before = peer.ask("GET", f"{DEFINITIONS}/things{index}.example.org").must()
        after = definition(index, schema)
        after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        peer.ask("PUT", f"{DEFINITIONS}/things{index}.example.org", after).must()
    time.sleep(3)  # until their rules hold
    said = {}
    for index, (name, schema, cases) in enumerate(asked):
        answers = []
        for number, (case, new, old) in enumerate(cases):
            path = f"/apis/example.org/v1/things{index}"
            if old is None:
                answer = peer.ask("POST", f"{path}?dryRun=All", thing(index, f"t{number}", new))
            else:
                body = thing(index, f"t{number}", new, versions[index, number])
                answer = peer.ask("PUT", f"{path}/t{number}?dryRun=All", body)
            listed = (answer.json.get("details") or {}).get("causes") or []
            causes = [[cause.get("reason"), cause.get("field", ""), cause["message"]] for cause in listed]
            if answer.code >= 300 and not causes:
                raise SystemExit(f"{case}: {answer.json}")
            answers.append({"name": case, "new": new, "old": old, "causes": causes})
        said[name.replace(" ", "-")] = {"name": name, "schema": schema, "cases": answers}
    recordings.write(Path(__file__).with_name("validations"), said)
