"""`tinkedge discover`: who waits, who has not come, the approval, lists with passwords, and adoption."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from edge.commands.discover import survey_lines
from tests.support.api import InProcessApi
from tests.support.bmc import FakeBmc, MemoryTransport
from tests.support.discovery import Site, mac, name
from tests.unit.bmc.rig import HOST, secret
from tink.api.annotations import APPROVE_ANNOTATION
from tink.bmc.model import BmcConnection, BmcCredentials
from tink.bmc.quirks import Quirks
from tink.bmc.redfish import RedfishClient
from tink.discovery.model import discovered_name
from tink.discovery.operators import (
    DiscoveryError,
    adopt_by_bmc,
    adopt_by_inventory,
    approve,
    prepare_list,
    store_list,
    survey,
)
from tink.kube.objects import NamespacedName
from tink.kube.resources import CONFIG_MAP, HARDWARE, MACHINE, SECRET

FIRST = NamespacedName("default", discovered_name(mac(0)))


def api_of(*objects: Any) -> Any:
    """Return the API as the client of the functions under test."""
    return InProcessApi(*objects)


# --- survey -----------------------------------------------------------------------------------------------------------


async def test_survey_shows_who_waits_who_has_not_come_and_who_differs() -> None:
    site = Site(4)
    approved = site.hardware(1)
    approved["metadata"] = {"name": name(1), "namespace": "default"}
    condition = {"type": "AsExpected", "status": "False", "reason": "MemoryShort", "message": "it has 240 GiB"}
    approved["status"]["conditions"] = [condition]
    bare = site.hardware(2)
    del bare["status"]
    api = api_of(site.hardware(0), approved, bare, site.config_map({3: "rack-0003,NA" + 12 * ","}))
    found = await survey(api, None)
    assert [each.key.name for each in found.waiting] == [discovered_name(mac(0)), discovered_name(mac(2))]
    assert [each.key.name for each in found.missing] == [name(0), name(2)]
    assert [each.reason for each in found.different] == ["MemoryShort"]
    assert len(found.problems) == 1
    text = "\n".join(survey_lines(found, time.time()))
    assert f"tinkedge discover approve {discovered_name(mac(0))} NEW-NAME -n default" in text
    assert "serial SN00000  256 GiB  /dev/nvme0n1 3.84 TB SSD" in text or "serial SN00000" in text
    assert "its agent has not reported yet" in text
    assert "default/rack-0001  MemoryShort: it has 240 GiB" in text
    assert "line 5: serial: 'NA' is a placeholder" in text


async def test_survey_names_the_lists_that_count_for_a_machine_if_they_are_not_of_its_namespace() -> None:
    own, other = Site(2).hardware(0), Site(2).hardware(1)
    other["metadata"]["annotations"] = {"tinkerbell.org/discovery-rule": "rack7,only=listed,lists=b,lists=a"}
    found = await survey(api_of(own, other), None)
    assert [each.lists for each in found.waiting] == [("default",), ("a", "b")]
    lines = [each for each in survey_lines(found, time.time()) if "lists that count" in each]
    assert lines == ["    lists that count for it: those of namespace a, b"]


# --- approval ---------------------------------------------------------------------------------------------------------


@pytest.mark.looptime
async def test_approval_that_no_controller_acts_on_says_so() -> None:
    api, shown = api_of(Site(1).hardware(0)), list[str]()
    with pytest.raises(DiscoveryError, match="no controller acts on it: `tinkedge up` or"):
        await approve(api, FIRST, "web1", seconds=30, progress=shown.append)
    assert api.read(HARDWARE, FIRST.name)["metadata"]["annotations"][APPROVE_ANNOTATION] == "web1"
    assert len(shown) == 1


async def test_approval_of_a_machine_that_does_not_wait_or_under_a_taken_name_is_refused() -> None:
    taken = Site(2, discovered=False).hardware(1)
    api = api_of(Site(1).hardware(0), taken)
    for key, new_name, message in (
        (FIRST, name(1), "exists already"),
        (NamespacedName("default", name(1)), "x", "does not wait for an approval"),
        (NamespacedName("default", "nothing"), "x", "there is no Hardware default/nothing"),
    ):
        with pytest.raises(DiscoveryError, match=message):
            await approve(api, key, new_name, seconds=1, progress=print)


# --- lists ------------------------------------------------------------------------------------------------------------

LIST = "Name;Serial Number;iDRAC IP;BMC Username;BMC Password\r\nm1;S1;10.9.0.1;root;calvin1\r\nm2;S2;10.9.0.2;;\r\n"


async def test_passwords_of_a_list_become_secrets_and_leave_its_text() -> None:
    prepared = prepare_list("Rack 7.csv", LIST.encode("utf-8-sig"), "default")
    assert prepared.problems == ()
    assert [(each.key.name, each.bmc_secret) for each in prepared.machines] == [("m1", "m1-bmc"), ("m2", "")]
    api = api_of()
    await store_list(api, prepared)
    stored = api.read(CONFIG_MAP, "rack-7")
    assert "calvin1" not in json.dumps(stored)
    assert "root" not in json.dumps(stored["data"])
    assert stored["data"].keys() == {"Rack-7.csv"}
    data = api.read(SECRET, "m1-bmc")["data"]
    assert [base64.b64decode(data[field]).decode() for field in ("username", "password")] == ["root", "calvin1"]
    assert api.read(SECRET, "m2-bmc") is None
    assert len((await survey(api, None)).missing) == 2


@pytest.mark.parametrize(
    "line",
    ["m1,S1,Dell, Inc.,root,calvin1", "m1,root,calvin1", 'm1,S1,"Dell,root,calvin1', "m1,S1,root,calvin1"],
    ids=["too many", "too few", "open quote", "one missing"],
)
def test_line_in_which_any_cell_may_be_a_password_is_left_out_and_reported(line: str) -> None:
    text = f"# rack 7\nname,serial,vendor,BMC Username,BMC Password\n\n{line}\nm2,S2,Dell,root,geheim,\n"
    prepared = prepare_list("rack.csv", text.encode(), "default")
    assert "calvin1" not in json.dumps([prepared.config_map, prepared.secrets])
    assert [(each.key.name, each.bmc_secret) for each in prepared.machines] == [("m2", "m2-bmc")]
    assert [each.source for each in prepared.problems] == ["rack.csv line 4"]
    assert not any(secret in prepared.problems[0].text for secret in ("calvin1", "root", "geheim"))


def test_problem_of_a_list_with_passwords_names_the_line_of_the_file() -> None:
    text = "# rack 7\n\nname,serial,BMC Username,BMC Password\nm1,S1,root,x\n# the next one is new\nm2,NA,root,y\n"
    (problem,) = prepare_list("rack.csv", text.encode(), "default").problems
    assert problem.source == "rack.csv line 6"


async def test_import_keeps_the_other_keys_of_a_secret() -> None:
    api = api_of(secret())
    present = api.read(SECRET, "bmc-auth") | {"data": {"username": "", "password": "", "ca.crt": "eA=="}}
    present |= {"type": "Opaque", "metadata": {"name": "m1-bmc", "namespace": "default"}}
    api.put(present)
    await store_list(api, prepare_list("rack.csv", LIST.encode(), "default"))
    assert api.read(SECRET, "m1-bmc")["data"]["ca.crt"] == "eA=="
    assert base64.b64decode(api.read(SECRET, "m1-bmc")["data"]["username"]) == b"root"


async def test_list_is_replaced_and_no_other_configmap_is() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "site", "namespace": "default"}, "data": {}}
    api = api_of(other)
    await store_list(api, prepare_list("site.csv", b"name,serial\nm1,S1\n", "default", "rack"))
    await store_list(api, prepare_list("rack.csv", b"name,serial\nm2,S2\n", "default", "rack"))
    assert api.read(CONFIG_MAP, "rack")["data"] == {"rack.csv": "name,serial\nm2,S2\n"}
    with pytest.raises(DiscoveryError, match="exists and is no list of expected machines"):
        await store_list(api, prepare_list("site.csv", b"name,serial\nm1,S1\n", "default"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name,serial\nm1,\xff\n", "not UTF-8"),
        (b"name,serial,password\nm1,S1,x\n", "both a column bmc_username and a column bmc_password"),
    ],
)
def test_list_that_cannot_be_stored_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DiscoveryError, match=message):
        prepare_list("rack.csv", content, "default")


# --- adoption ---------------------------------------------------------------------------------------------------------


async def test_adopted_machine_has_no_address_and_permits_no_netboot() -> None:
    api = api_of()
    content = json.dumps(Site(1).attributes[0]).encode()
    assert "2 network ports" in await adopt_by_inventory(api, NamespacedName("default", "db1"), content)
    hardware = api.read(HARDWARE, "db1")
    interfaces = hardware["spec"]["networkInterfaces"]
    assert interfaces.keys() == {mac(0), mac(0, 1)}
    assert all(each["disableNetboot"] and "dhcp" not in each for each in interfaces.values())
    assert hardware["status"]["inventory"]["inBand"]["product"]["serialNumber"] == "SN00000"
    with pytest.raises(DiscoveryError, match="Hardware default/db1 exists already"):
        await adopt_by_inventory(api, NamespacedName("default", "db1"), content)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"product": {"serialNumber": "S1"}}', b" " * 300_000])
async def test_inventory_that_identifies_no_machine_or_is_too_large_is_refused(content: bytes) -> None:
    with pytest.raises(DiscoveryError):
        await adopt_by_inventory(api_of(), NamespacedName("default", "db1"), content)


async def test_machine_is_adopted_by_its_bmc_which_is_only_read() -> None:
    bmc, api = FakeBmc(), api_of(secret())

    def client(connection: BmcConnection, credentials: BmcCredentials, quirks: Quirks) -> RedfishClient:
        return RedfishClient(connection, credentials, quirks, transport=MemoryTransport(bmc))

    done = await adopt_by_bmc(api, NamespacedName("default", "db1"), HOST, "bmc-auth", clients={"redfish": client})
    assert "Machine default/db1" in done
    assert api.read(MACHINE, "db1")["spec"]["connection"]["authSecretRef"]["name"] == "bmc-auth"
    assert api.read(HARDWARE, "db1")["spec"]["bmcRef"] == {"name": "db1"}
    assert bmc.resets == []
    taken = api_of(secret(), api.read(HARDWARE, "db1"))
    with pytest.raises(DiscoveryError, match="Hardware default/db1 exists already"):
        await adopt_by_bmc(taken, NamespacedName("default", "db1"), HOST, "bmc-auth", clients={"redfish": client})
    assert taken.read(MACHINE, "db1") is None, "no Machine is left behind"
