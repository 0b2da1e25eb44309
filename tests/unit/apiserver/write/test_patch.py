"""The three kinds of patch, against their RFCs and against odd input; conformance/cases/patches.yaml has the rest."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.apiserver.patch import PatchError, apply_operations, merge, merge_strategic

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
_OBJECT = st.dictionaries(st.text(max_size=2), _JSON, max_size=4)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_does_what_the_rfc_shows(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


@given(_OBJECT, _OBJECT)
def test_merge_patch_twice_is_merge_patch_once_and_changes_no_argument(target: Any, patch: Any) -> None:
    kept = copy.deepcopy((target, patch))
    once = merge(target, patch)
    assert merge(once, patch) == once
    assert (target, patch) == kept


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [  # RFC 6902, appendix A, and array bounds
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
        ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        (
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
        ),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
        (
            {"/": 9, "~1": 10},
            [{"op": "test", "path": "/~01", "value": 10}, {"op": "remove", "path": "/~1"}],
            {"~1": 10},
        ),
        (
            {"a": {"b": 1}},
            [{"op": "copy", "from": "/a", "path": "/c"}, {"op": "replace", "path": "/c/b", "value": 2}],
            {"a": {"b": 1}, "c": {"b": 2}},
        ),
        ({"foo": None}, [{"op": "replace", "path": "/foo", "value": 1}], {"foo": 1}),
    ],
)
def test_json_patch_does_what_the_rfc_shows(target: Any, operations: Any, result: Any) -> None:
    kept = copy.deepcopy(target)
    assert apply_operations(target, operations) == result
    assert target == kept


def test_json_patch_cannot_double_an_object_without_end() -> None:
    double = [{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(64)]
    with pytest.raises(PatchError, match="copy operations"):
        apply_operations({"a": {"x": "y" * 100}}, double)
    with pytest.raises(PatchError, match="maximum"):
        apply_operations({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)


@given(
    _OBJECT,
    st.lists(
        st.fixed_dictionaries(
            {"op": st.sampled_from(["add", "remove", "replace", "test"]), "path": st.text("/ab01-~", max_size=5)},
            optional={"value": _JSON},
        )
        | _JSON,
        max_size=4,
    ),
)
def test_json_patch_gives_json_or_an_error(target: Any, operations: Any) -> None:
    try:
        json.dumps(apply_operations(target, operations))
    except PatchError:
        return


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"data": {"a": "1"}}, {"data": {"b": "2", "a": None}}, {"data": {"b": "2"}}),
        ({"data": {"a": "1"}}, {"data": {"$patch": "replace", "b": "2"}}, {"data": {"b": "2"}}),
        ({"data": {"a": "1"}}, {"data": {"$patch": "delete"}}, {}),
        ({"data": {"a": "1", "b": "2"}}, {"data": {"$retainKeys": ["b"], "b": "3"}}, {"data": {"b": "3"}}),
        (
            {"metadata": {"finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b"]}},
            {"metadata": {"finalizers": ["b", "a"]}},
        ),
        (
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}},
            {"metadata": {"finalizers": ["b"]}},
        ),
        (
            {"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}, {"uid": "2"}]}},
            {
                "metadata": {
                    "ownerReferences": [{"uid": "1", "name": "b"}, {"uid": "2", "$patch": "delete"}, {"uid": "3"}]
                }
            },
            {"metadata": {"ownerReferences": [{"uid": "1", "name": "b"}, {"uid": "3"}]}},
        ),
        ({"list": [1]}, {"list": [2]}, {"list": [2]}),
    ],
)
def test_strategic_merge_patch_merges_lists_by_key(target: Any, patch: Any, result: Any) -> None:
    assert merge_strategic(target, patch) == result


@pytest.mark.parametrize("there", [5, True, "x", {"x": 1}])
@pytest.mark.parametrize("name", ["$deleteFromPrimitiveList/finalizers", "finalizers", "ownerReferences"])
def test_strategic_merge_patch_of_a_list_where_there_is_none_is_refused(there: Any, name: str) -> None:
    target = {"finalizers": there, "ownerReferences": there}
    with pytest.raises(PatchError, match=f"{name.rpartition('/')[2]} is no list"):
        merge_strategic(target, {name: [{"uid": "x"}]})


@given(_OBJECT, _OBJECT)
def test_strategic_merge_patch_gives_json_or_an_error(target: Any, patch: Any) -> None:
    names = ["$patch", "$retainKeys", "$deleteFromPrimitiveList/a", "$setElementOrder/a", "finalizers", "webhooks"]
    renamed = dict(zip(names, patch.values(), strict=False))
    try:
        json.dumps(merge_strategic({"a": target, **target}, {**patch, **renamed, "a": renamed}))
    except PatchError:
        return
