"""ConversionReviews: what an API server checks in an answer, what it may send, and how long it waits."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest

from tests.unit.metal3.hosts import V1ALPHA1, V1BETA1, hosts
from tink.convert.metal3 import ConversionSettings, convert_version
from tink.convert.metal3.conversion_data import ANNOTATION
from tink.metal3.review import ReviewError, answer

SETTINGS = ConversionSettings()
OF_THE_SERVER = ("name", "namespace", "uid", "resourceVersion", "managedFields", "creationTimestamp", "finalizers")


def review(objects: Any, desired: Any = V1BETA1, uid: Any = "u-1", **more: Any) -> bytes:
    request = {"uid": uid, "desiredAPIVersion": desired, "objects": objects}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}
    return orjson.dumps({**kind, "request": request, **more})


def answered(objects: Any, desired: str = V1BETA1) -> Any:
    made = orjson.loads(answer(review(objects, desired), SETTINGS))
    assert (made["apiVersion"], made["kind"]) == ("apiextensions.k8s.io/v1", "ConversionReview")
    assert made["response"]["uid"] == "u-1"
    return made["response"]


def converted(objects: Any, desired: str = V1BETA1) -> Any:
    response = answered(objects, desired)
    assert response["result"] == {"status": "Success"}
    return response["convertedObjects"]


def test_list_comes_back_as_many_as_it_was_in_its_order_each_as_asked_for_whatever_it_was() -> None:
    mixed = [host for pair in zip(hosts(V1ALPHA1, 50, 1), hosts(V1BETA1, 50, 2), strict=True) for host in pair]
    for number, host in enumerate(mixed):
        host["metadata"] |= {"name": f"n{number}", "resourceVersion": "7", "managedFields": [{"manager": "m"}]}
        host["metadata"] |= {"creationTimestamp": None, "finalizers": ["f"], "labels": {"a": "b"}}
    for desired in (V1ALPHA1, V1BETA1):
        before = copy.deepcopy(mixed)
        made = converted(mixed, desired)
        assert [each["apiVersion"] for each in made] == [desired] * len(mixed)
        for old, new in zip(before, made, strict=True):
            for field in OF_THE_SERVER:
                assert new["metadata"].get(field) == old["metadata"].get(field)
            assert new["metadata"]["labels"] == {"a": "b"}
            assert new["kind"] == "BareMetalHost"
            assert new == (old if old["apiVersion"] == desired else convert_version(old, desired, SETTINGS))


def test_hosts_keep_their_meaning_through_two_reviews() -> None:
    old = {**next(hosts(V1ALPHA1, 1, 5)), "spec": {"online": True, "hardwareProfile": "dell"}, "status": {}}
    [up] = converted([old])
    assert up["spec"] == {"poweredOn": True, "rootDeviceHints": {"hctl": "0:0:0:0"}}
    [down] = converted([up], V1ALPHA1)
    assert down == old


def test_setting_of_the_server_reaches_the_hosts() -> None:
    old = {"apiVersion": V1ALPHA1, "kind": "BareMetalHost", "metadata": {}, "spec": {"image": {"url": "x"}}}
    for wanted in ("md5", "auto"):
        made = orjson.loads(answer(review([old]), ConversionSettings(wanted)))  # type: ignore[arg-type]
        assert made["response"]["convertedObjects"][0]["spec"]["image"]["checksumType"] == wanted


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": []}, {"metadata": "x"}])
def test_partial_object_comes_back_with_metadata_that_the_server_accepts(metadata: Any) -> None:
    for version, desired in ((V1ALPHA1, V1BETA1), (V1BETA1, V1ALPHA1), (V1ALPHA1, V1ALPHA1)):
        [made] = converted([{"apiVersion": version, "kind": "BareMetalHost", **metadata}], desired)
        assert made["apiVersion"] == desired
        assert isinstance(made["metadata"], dict)


def test_broken_annotation_of_one_host_does_not_hide_the_others() -> None:
    for broken in ("{", "null", "[]", '{"spec": 7}', '{"apiVersion": "v9"}', "[" * 100_000):
        kind = {"apiVersion": V1BETA1, "kind": "BareMetalHost", "spec": {}}
        annotated = [{**kind, "metadata": {"annotations": {ANNOTATION: text}}} for text in ("{}", broken, "{}")]
        assert len(converted(annotated, V1ALPHA1)) == 3
    odd = [None, 1, "x", [], {}, {"apiVersion": V1ALPHA1, "metadata": [], "spec": 1, "status": "x", "kind": {}}]
    assert len(converted(odd, V1BETA1)) == len(odd)
    assert converted([]) == converted(None) == []


def test_other_version_than_these_two_is_a_failure_that_names_them() -> None:
    response = answered([{"apiVersion": V1ALPHA1, "metadata": {}}], "metal3.io/v1")
    assert response["result"]["status"] == "Failure"
    assert "v1alpha1 and metal3.io/v1beta1, not metal3.io/v1" in response["result"]["message"]
    assert "convertedObjects" not in response


def test_object_that_nests_deeper_than_any_schema_is_refused_and_not_a_crash() -> None:
    head = b'{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"u-1",'
    head += b'"desiredAPIVersion":"metal3.io/v1beta1","objects":[{"apiVersion":"metal3.io/v1alpha1","metadata":{},'
    for depth, refused in ((200, False), (300, True), (1000, True), (100_000, True)):
        body = head + b'"spec":{"odd":' + b"[" * depth + b"]" * depth + b"}}]}}"
        if refused:
            with pytest.raises(ReviewError):
                answer(body, SETTINGS)
        else:
            assert b"[" * depth in answer(body, SETTINGS)


BAD = {
    b"": "it is not JSON",
    b"{": "it is not JSON",
    b"[" * 10_000: "it is not JSON",
    b"[]": "it is not an object",
    b"{}": "apiVersion must be apiextensions.k8s.io/v1, not null",
    review([], apiVersion="apiextensions.k8s.io/v1beta1"): 'not "apiextensions.k8s.io/v1beta1"',
    review([], kind="AdmissionReview"): 'kind must be ConversionReview, not "AdmissionReview"',
    review([], request=None): "request is missing",
    review([], request=[]): "request is missing",
    review([], uid=None): "request.uid must be a string, not null",
    review([], uid=""): "request.uid must be a string",
    review([], uid={}): "request.uid must be a string, not a dict",
    review([], desired=7): "request.desiredAPIVersion must be a string, not 7",
    review({}): "request.objects must be a list, not a dict",
    review("x" * 10_000): "request.objects must be a list",
}


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_what_is_no_review_is_refused_in_a_short_sentence_that_names_the_field(body: bytes) -> None:
    with pytest.raises(ReviewError) as caught:
        answer(body, SETTINGS)
    assert BAD[body] in str(caught.value)
    assert len(str(caught.value)) < 400
