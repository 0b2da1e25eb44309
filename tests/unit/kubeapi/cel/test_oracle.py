"""Our CEL gives the same answers as k8s.io/apiserver v0.36.3 to thousands of expressions.

`corpus` holds the questions and the recorded answers, `oracle/` the Go program that gives them and the command that
records them. These tests do not need Go.
"""

import base64
import collections
import json
import pathlib

import pytest

from tests import recordings
from tests.implementation_details import in_common
from tink.kubeapi import cel
from tink.kubeapi.cel import values
from tink.kubeapi.cel.library import named_formats, net, quantity, semver
from tink.kubeapi.cel.library.conversions import timestamp_text
from tink.kubeapi.cel.types import text_of
from tink.kubeapi.schema.declarations import declare

CORPUS = recordings.read(pathlib.Path(__file__).parent / "corpus")
CASES = [*CORPUS["plain"], *CORPUS["of-a-schema"]]
PREFIX = "ERROR: <input>:"

DIFFERENCES = {
    # Go maps cannot have bytes for keys and the server reports an internal error; here the key is not there.
    "dyn(b'ab\\xff') in dyn({1: 2})": "internal error",
    "self.open.distinct().size()": "internal error where the field is missing",
    "self.ports.sortBy(p, p.port).map(p, p.name)": "internal error where the field is missing",
    # The check lets null pass for an optional; Kubernetes then evaluates to null.
    "null.orValue(3)": "null as an optional",
    "duration(null)": "reported when the program is made, not by the check",
    "timestamp(null)": "reported when the program is made, not by the check",
    "dyn(optional.none())[dyn(optional.none())]": "an optional as an index",
    "google.protobuf.Timestamp{}": "message literals are rejected",
    "'%.99999999f'.format([1.0])": "precision is bounded",
    "quantity('12345678901234567890').asApproximateFloat()": "the last digit of a double",
}
"""Expressions with known differences, each with the reason."""


def comparable(errors):
    """Return the errors in words that both engines share."""
    if isinstance(errors, list) and "Syntax error" in str(errors):
        return [errors[0].partition(": ")[0]]  # only the place of the first error: ANTLR's guesses after it differ
    return in_common(errors)


def shown(value):
    """Return a value as the oracle writes it."""
    writers = {
        type(None): lambda v: "null",
        bool: lambda v: "true" if v else "false",
        int: str,
        values.UInt: lambda v: f"{int(v)}u",
        float: lambda v: f"double({values.double_text(v)})",
        str: lambda v: json.dumps(v, ensure_ascii=False),
        bytes: lambda v: f"bytes({base64.b64encode(v).decode()})",
        values.Timestamp: lambda v: f"timestamp({timestamp_text(values.Timestamp(v.ns))})",
        values.Duration: lambda v: f"duration({v.ns})",
        values.TypeValue: lambda v: f"type({v.name})",
        values.Optional: lambda v: f"optional({shown(v.value)})" if v.present else "optional.none",
        net.Ip: lambda v: f"ip({v})",
        net.Cidr: lambda v: f"cidr({v})",
        net.Url: lambda v: f"url({v.text})",
        quantity.Quantity: lambda v: f"quantity({v})",
        semver.Semver: lambda v: f"semver({v})",
        named_formats.NamedFormat: lambda v: f"format({v.name})",
        dict: lambda v: "{" + ",".join(sorted(f"{shown(k)}:{shown(x)}" for k, x in v.items())) + "}",
    }
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    return writers[type(value)](value)


def declared_types(schema):
    if schema < 0:
        return {"self": cel.types.DYN, "oldSelf": cel.types.DYN}
    given = CORPUS["schemas"][schema]
    t = declare(given, name="selfType", root=bool(given.get("x-kubernetes-embedded-resource")))
    return {"self": t, "oldSelf": t}


TYPES = {at: declared_types(at) for at in range(-1, len(CORPUS["schemas"]))}


def evaluated(case):
    """Return our answer to a case in the form of the corpus."""
    expression, schema, value, old, _ = case
    try:
        program = cel.compile_expression(expression, TYPES[schema])
    except cel.CelError as error:
        heads = (line for line in str(error).split("\n") if not line.startswith(" | "))
        return {"c": [line.removeprefix(PREFIX) for line in heads]}
    cost = program.estimate()
    answer = {"t": text_of(program.type), "e": [cost.min, cost.max]}
    given = (("self", value), ("oldSelf", old))
    bindings = {name: CORPUS["values"][at] for name, at in given if at >= 0}
    budget = cel.CostBudget()
    try:
        answer["r"] = shown(program(bindings, budget))
        answer["k"] = budget.used
    except cel.EvaluationError as error:
        answer["x"] = str(error)
    return answer


@pytest.fixture(scope="module")
def answers():
    """Return every case with our answer."""
    return [(case, evaluated(case)) for case in CASES]


@pytest.fixture(scope="module")
def differing(answers):
    """Return the cases that differ from Kubernetes, and the number of cases, by the part of the answer."""
    differences, compared = collections.defaultdict(list), collections.Counter()
    for case, ours in answers:
        theirs = case[4]
        for part in set(ours) | set(theirs):
            compared[part] += 1
            both = ours.get(part), theirs.get(part)
            if part in "cx":
                both = comparable(both[0]), comparable(both[1])
            if both[0] != both[1] and case[0] not in DIFFERENCES:
                differences[part].append((case[0], "want", theirs.get(part), "got", ours.get(part)))
    return differences, compared


def test_results_are_the_same_as_in_a_cluster(differing):
    differences, compared = differing
    assert compared["r"] > 1500
    assert not differences["r"], differences["r"][:10]
    assert not differences["t"], differences["t"][:10]


def test_compile_errors_are_the_same_as_in_a_cluster(differing):
    differences, compared = differing
    assert compared["c"] > 500
    # ANTLR's guesses after a syntax error are not always the same as ours.
    serious = [case for case in differences["c"] if "Syntax error" not in str(case)]
    assert not serious, serious[:10]
    assert len(differences["c"]) < compared["c"] * 0.03, differences["c"][:10]


def test_evaluation_errors_are_the_same_as_in_a_cluster(differing):
    differences, compared = differing
    assert compared["x"] > 500
    assert len(differences["x"]) < compared["x"] * 0.03, differences["x"][:30]


def test_costs_are_the_same_as_in_a_cluster(differing):
    differences, _ = differing
    assert len(differences["k"]) <= 12, differences["k"][:20]


def test_estimated_costs_are_the_same_as_in_a_cluster(differing):
    differences, _ = differing
    assert not differences["e"], differences["e"][:10]


def test_known_differences_still_differ(answers):
    compared = {case[0] for case, _ in answers}
    different = {case[0] for case, ours in answers if ours != case[4]}
    assert {expression for expression in DIFFERENCES if expression in compared} <= different
