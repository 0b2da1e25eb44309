"""docs/bmc.md: its manifests are accepted, and it has every reason and every known fault."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from tink.api.crds import generate_bmc
from tink.bmc.model import Cause
from tink.bmc.quirks import QUIRKS, Quirk
from tink.kubeapi.schema.checker import compile_definition

PAGE = (Path(__file__).parents[3] / "docs" / "bmc.md").read_text()
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"^ *```yaml\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)]
CHECKERS = {each["spec"]["names"]["kind"]: compile_definition(each)["v1alpha1"] for each in generate_bmc()}


@pytest.mark.parametrize("block", BLOCKS)
def test_manifests_are_accepted_without_unknown_fields(block: str) -> None:
    documents = list(yaml.safe_load_all(block))
    kinds = [document["kind"] for document in documents]
    assert set(kinds) <= {"Secret", *CHECKERS}
    for document in documents:
        document["metadata"]["namespace"] = "default"
        if document["kind"] in CHECKERS:
            assert CHECKERS[document["kind"]].check(document).problems == []
        else:
            assert set(document["stringData"]) == {"username", "password"}


def test_there_are_manifests_of_a_machine_by_each_protocol_and_of_jobs() -> None:
    kinds = [document["kind"] for block in BLOCKS for document in yaml.safe_load_all(block)]
    assert kinds == ["Secret", "Machine", "Machine", "Job", "Job"]


@pytest.mark.parametrize("cause", Cause)
def test_each_reason_has_its_meaning_and_remedy(cause: Cause) -> None:
    (row,) = re.findall(rf"^\| `{cause.value}` \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert all(row)


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: f"row-{quirk.number}")
def test_each_known_fault_is_listed_with_symptom_remedy_and_source(quirk: Quirk) -> None:
    (row,) = re.findall(rf"^\| {quirk.number} \| (.+) \|$", PAGE, re.MULTILINE)
    vendor, *rest = row.split(" | ")
    assert rest == [quirk.symptom, quirk.remedy, quirk.source]
    assert (vendor == "all") == (not quirk.vendors)
    assert vendor == "all" or vendor.lower().split(",")[0] in quirk.vendors
