"""The SMBIOS table: known layouts are read, and no bytes of firmware stop the reader."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.agent.inventory import trees
from tests.unit.agent.inventory.trees import placed, structure, word
from tink.agent.inventory import smbios
from tink.api.v1alpha2 import Attributes


def test_table_ends_at_its_end_structure():
    table = structure(2, placed(11)) + structure(127) + structure(2, placed(11))
    assert [each.type for each in smbios.structures(table)] == [2]


def test_structure_that_is_cut_off_ends_the_table():
    whole = trees.dell_table()
    assert len(smbios.structures(whole)) == 14
    first = structure(0, placed(20, at_04=1), ("Dell Inc.",))
    for cut in range(1, len(first)):
        assert smbios.structures(first[:cut]) == []


def test_number_of_structures_is_bounded():
    assert len(smbios.structures(structure(2) * 10_000)) == smbios.MAX_STRUCTURES


def test_number_of_strings_is_bounded():
    (found,) = smbios.structures(structure(2, placed(11, at_04=200), [f"text {number}" for number in range(200)]))
    assert len(found.strings) == smbios.MAX_STRINGS
    assert smbios.baseboard([found]) == {}


def test_uuid_is_little_endian_since_version_2_6():
    table = smbios.structures(structure(1, placed(23, at_08=trees.UUID_LE)))
    assert smbios.product(table)["uuid"] == "4c4c4544-0058-4b10-b333-4d34c04f3758"
    assert smbios.product(table, (2, 5))["uuid"] == "44454c4c-5800-104b-b333-4d34c04f3758"
    for absent in (bytes(16), b"\xff" * 16):
        assert smbios.product(smbios.structures(structure(1, placed(23, at_08=absent)))) == {}


def test_system_of_smbios_2_0_has_no_uuid():
    table = smbios.structures(structure(1, placed(4, at_04=1, at_07=2), ("Compaq", "D123")))
    assert smbios.product(table) == {"vendor": "Compaq", "serialNumber": "D123"}


def test_size_of_a_module_has_three_forms():
    sizes = {"KB": (0x8000 | 512, 0), "MB": (16384, 0), "extended": (0x7FFF, 131072), "unknown": (0xFFFF, 0)}
    table = b"".join(trees.dimm(slot, size, extended) for slot, (size, extended) in sizes.items())
    found = {each["slot"]: each["sizeBytes"] for each in smbios.memory_modules(smbios.structures(table))}
    assert found == {"KB": 512 << 10, "MB": 16 << 30, "extended": 128 << 30}


def test_more_than_254_cores_are_counted_in_a_word():
    fields = {"at_05": 3, "at_18": 0x41, "at_23": 0xFF, "at_25": 0xFF, "at_2a": word(288), "at_2e": word(576)}
    (found,) = smbios.processors(smbios.structures(structure(4, placed(0x32 - 4, **fields))))
    assert (found["cores"], found["threads"]) == (288, 576)


def test_empty_socket_is_no_processor():
    table = smbios.structures(trees.processor("CPU1") + trees.processor("CPU2", status=0x00))
    assert [each["slot"] for each in smbios.processors(table)] == ["CPU1"]


def test_bmc_has_the_address_that_other_machines_reach():
    def bmc(*parts):
        return smbios.bmc(smbios.structures(b"".join(parts)))

    assert bmc(trees.redfish_interface(bytes((10, 1, 2, 3)))) == {"address": "10.1.2.3"}
    assert bmc(trees.IPMI, trees.redfish_interface(bytes.fromhex("20010db8" + "00" * 11 + "07"), form=2)) == {
        "model": "IPMI KCS", "address": "2001:db8::7",
    }  # fmt: skip
    for unreachable in (bytes(4), bytes((169, 254, 0, 17)), bytes((127, 0, 0, 1))):
        assert bmc(trees.redfish_interface(unreachable)) == {}
    assert bmc() == {}


def everything(table):
    """Return all parts of a table in one inventory."""
    found = smbios.structures(table)
    modules, sockets = smbios.memory_modules(found)[:256], smbios.processors(found)[:256]
    return {
        "bios": smbios.bios(found), "product": smbios.product(found), "baseboard": smbios.baseboard(found),
        "chassis": smbios.chassis(found), "bmc": smbios.bmc(found), "memory": {"modules": modules},
        "cpu": {"sockets": sockets},
    }  # fmt: skip


@given(st.binary(max_size=600))
@example(bytes(100))
@example(b"\x11\xff\0\0" + b"\xff" * 300)
def test_no_table_stops_the_reader(table):
    found = everything(table)
    Attributes.model_validate(found)
    json.dumps(found, ensure_ascii=False).encode()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 3, 4, 16, 17, 38, 42]),
            st.binary(max_size=100),
            st.lists(
                st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20), max_size=5
            ),
        ),
        max_size=6,
    )
)
def test_no_structure_of_a_known_type_stops_the_reader(parts):
    found = everything(b"".join(structure(kind, body, strings) for kind, body, strings in parts))
    Attributes.model_validate(found)
    json.dumps(found, ensure_ascii=False).encode()


@given(st.integers(0, len(trees.dell_table())), st.binary(min_size=1, max_size=8))
def test_no_damage_of_a_real_table_stops_the_reader(at, damage):
    table = trees.dell_table()
    Attributes.model_validate(everything(table[:at] + damage + table[at + len(damage) :]))
