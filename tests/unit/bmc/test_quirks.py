"""The table of quirks: which rows apply to a BMC, and the comparison of firmware versions."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.bmc.model import Identity
from tink.bmc.quirks import QUIRKS, Handler, Quirks, in_range, quirks_for, row, rows_for, version_of

SWITCHES = {field.name for field in fields(Quirks)} - {"rows"}


def test_the_table_has_all_numbers_in_order() -> None:
    assert [each.number for each in QUIRKS] == list(range(1, 54))


def test_rows_are_complete_and_plain() -> None:
    for each in QUIRKS:
        assert each.symptom, each.number
        assert each.remedy, each.number
        assert each.source, each.number
        assert not (each.symptom + each.remedy).endswith("."), each.number
        assert not each.sets.rows
        assert each.vendors or each.sets == Quirks(), f"row {each.number} is for all BMCs, and sets a switch"
        for text in (*each.vendors, *each.models, *each.except_models):
            assert text == text.lower(), "names are compared in lower case"


def test_each_switch_is_set_by_a_row_or_waits_for_one() -> None:
    default = Quirks()
    used = {name for name in SWITCHES for each in QUIRKS if getattr(each.sets, name) != getattr(default, name)}
    # No source names the BMC of quirk 50.
    assert SWITCHES - used == {"connection_close"}


def test_rows_of_the_client_set_nothing_for_the_decision() -> None:
    for each in QUIRKS:
        if each.handled_by in (Handler.REDFISH, Handler.INVENTORY, Handler.CONNECTIONS):
            assert each.sets == Quirks(), each.number


@pytest.mark.parametrize(
    ("identity", "numbers"),
    [
        (Identity("Supermicro", "AS-1015CS-TNR-EU"), {1, 2, 3, 12, 14, 37}),
        (Identity("Super Micro Computer Inc.", "X10DRT-P"), {2, 3, 11, 12, 14, 37}),
        (Identity("Supermicro", "ARS-111GL-NHR"), {2, 3, 14, 37}),
        (Identity("Supermicro", "X11DSC+"), {2, 3, 12, 14, 15, 37}),
        (Identity("Dell Inc.", "PowerEdge R640", "3.32.32.32"), {4, 5, 16, 18, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R640", "4.00.00.00"), {4, 5, 18, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R730xd", "2.83"), {4, 5, 17, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R650", "5.10.10.05"), {4, 5, 18, 19, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R650", "5.10.30.00"), {4, 5, 18, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R670"), {4, 5, 20, 21, 23, 29, 31, 32, 34, 35}),
        (Identity("HPE", "ProLiant DL380 Gen10 Plus", "iLO 5 v2.30"), {7, 8, 9, 10, 39, 48}),
        (Identity("HPE", "ProLiant DL380 Gen11"), {8, 9, 10, 39}),
        (Identity("Hewlett Packard Enterprise", "ProLiant DL160 Gen9"), {7, 8, 9, 10, 39}),
        (Identity("Lenovo", "ThinkSystem SR630 V2"), {24, 25, 26, 27, 30, 38, 51, 52}),
        (Identity("Lenovo", "ThinkSystem SR650 V4"), {24, 25, 26, 27, 30, 45, 51, 52}),
        (Identity("ASRockRack", "X570D4U"), {6, 22, 26}),
        (Identity("GIGABYTE", "R292-4S0"), {6, 22, 26, 28}),
        (Identity("IBM", "9105-22A"), {28, 43, 44}),
        (Identity("Contoso", "3500"), set()),
        (Identity(), set()),
    ],
)
def test_rows_apply_by_vendor_model_and_firmware(identity: Identity, numbers: set[int]) -> None:
    assert {each.number for each in rows_for(identity)} == numbers
    assert quirks_for(identity).rows == tuple(sorted(numbers))


def test_switches_of_all_rows_are_set_together() -> None:
    quirks = quirks_for(Identity("Supermicro", "X10DRT-P"))
    assert quirks == Quirks(
        rows=(2, 3, 11, 12, 14, 37), mode_required=True, enabled_required=True, uefi_boot_by_ipmi=True,
        cd_target="UsbCd", insert_image_alone=True,
    )  # fmt: skip
    assert quirks_for(Identity("Contoso")) == Quirks()


def test_vendor_is_compared_by_words() -> None:
    assert rows_for(Identity("Dellwood Computers")) == []
    assert rows_for(Identity("Miami Systems")) == []


def test_row_of_an_unknown_number_is_an_error() -> None:
    assert row(24).number == 24
    with pytest.raises(KeyError):
        row(54)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.32.32.32", (3, 32, 32, 32)),
        ("iLO 5 v2.30", (2, 30)),
        ("XCC CDI3A4E 1.89", (1, 89)),
        ("1.45.455b66-rev4", (1, 45, 455)),
        ("build 7", (7,)),
        ("", ()),
        ("unknown", ()),
        ("1." * 30, (1,) * 8),
        ("²³.٣", ()),
        ("9" * 64, (999_999_999,)),
    ],
)
def test_version_is_the_first_dotted_number(text: str, version: tuple[int, ...]) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    ("firmware", "since", "until", "expected"),
    [
        ("3.32.32.32", "3.21", "3.32", True),
        ("3.21", "3.21", "3.32", True),
        ("3.20.99", "3.21", "3.32", False),
        ("3.33", "3.21", "3.32", False),
        ("10.1", "9.2", "", True),
        ("3.2", "3.10", "", False),
        ("3", "3.0", "3.0", True),
        ("", "", "", True),
        ("", "1", "", False),
        ("unknown", "", "9", False),
    ],
)
def test_firmware_ranges_include_their_bounds(firmware: str, since: str, until: str, expected: bool) -> None:
    assert in_range(firmware, since, until) is expected


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_no_identity_is_an_error(vendor: str, model: str, firmware: str) -> None:
    for name in (vendor, "Dell Inc.", "Supermicro", "Lenovo"):
        assert quirks_for(Identity(name, model, firmware)) is not None
    in_range(firmware, vendor, model)
