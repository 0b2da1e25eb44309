"""Metadata over HTTP: who is asking, what they get, and what never leaves for another machine."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import yaml

from edge.journey.events import Outcome, Step
from tests.unit.http.conftest import Rack
from tests.waiting import until
from tink.api.user_data import problem

MAC, IP = "52:54:00:00:00:01", "127.0.0.5"
OTHER_MAC, OTHER_IP = "52:54:00:00:00:02", "127.0.0.6"
CLOUD_INIT = {"User_Agent": "Cloud-Init/22.4.2"}


@pytest.fixture
def machines(rack: Rack) -> Any:
    rack.register(instance={"userdata": "#cloud-config\n# of m1\n", "vendordata": "v1"})
    rack.register("m2", OTHER_MAC, OTHER_IP, instance={"userdata": "#cloud-config\n# of m2\n"})
    return rack


async def test_cloud_inits_ec2_crawl_finds_everything(machines: Any) -> None:
    async def get(path: str) -> tuple[int, str]:
        reply = await machines.ask(path, **CLOUD_INIT)
        return reply.status, reply.text

    assert await get("/2009-04-04/meta-data/instance-id") == (200, "m1")
    for version in ("2021-03-23", "2018-09-24", "2016-09-02"):
        assert (await get(f"/{version}/meta-data/instance-id"))[0] == 404
    assert await get("/2009-04-04/user-data") == (200, "#cloud-config\n# of m1\n")
    status, listing = await get("/2009-04-04/meta-data/")
    assert status == 200
    for name in listing.split("\n"):
        assert (await get(f"/2009-04-04/meta-data/{name}"))[0] == 200
    assert machines.lines() == [
        (Step.METADATA, Outcome.OK, "instance-id to Cloud-Init/22.4.2"),
        (Step.METADATA, Outcome.OK, "user-data to Cloud-Init/22.4.2"),
        (Step.METADATA, Outcome.INFO, "meta-data to Cloud-Init/22.4.2"),
    ]


@pytest.mark.parametrize("version", ["2009-04-04", "latest"])
async def test_directories_answer_with_and_without_slash(machines: Any, version: str) -> None:
    for directory in ("", "/meta-data"):
        plain = await machines.ask(f"/{version}{directory}")
        slashed = await machines.ask(f"/{version}{directory}/")
        assert plain.status == slashed.status == 200
        assert plain.body == slashed.body
    assert plain.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert (await machines.ask(f"/{version}/")).text == "meta-data/\nuser-data\nvendor-data"


async def test_what_the_hardware_lacks_is_not_found(machines: Any) -> None:
    assert (await machines.ask("/latest/vendor-data", ip=OTHER_IP)).status == 404
    assert (await machines.ask("/latest/meta-data/public-keys/")).status == 404
    assert (await machines.ask("/latest/dynamic/instance-identity/document")).status == 404


@pytest.mark.parametrize("fast", [True, False])
async def test_rootio_without_partitions_fails_and_the_journey_says_what_is_missing(rack: Rack, fast: bool) -> None:
    rack.register()
    headers = {"User_Agent": "bootkit"} | ({} if fast else {"X_Any": "makes it no plain request"})
    reply = await rack.ask("/metadata", **headers)
    why = "Hardware m1 has no annotation tinkerbell.org/storage, which names partitions and filesystems"
    assert (reply.status, yaml.safe_load(reply.text)["metadata"]["instance"]["storage"]) == (200, why)
    assert rack.lines() == [(Step.METADATA, Outcome.FAILED, f"rootio leaves the disks alone and fails: {why}")]
    rack.register(annotations={"tinkerbell.org/storage": "{}"})
    await rack.ask("/metadata", **headers)
    assert rack.lines()[1:] == [(Step.METADATA, Outcome.OK, "metadata to bootkit")]


async def test_stranger_is_told_which_address_was_seen(machines: Any) -> None:
    reply = await machines.ask("/2009-04-04/meta-data/instance-id", ip="127.0.0.9")
    assert (reply.status, reply.text) == (404, "no Hardware has the address 127.0.0.9\n")


async def test_two_hardware_with_one_address_get_nothing(machines: Any, caplog: pytest.LogCaptureFixture) -> None:
    machines.register("m3", "52:54:00:00:00:03", IP)
    assert (await machines.ask("/2009-04-04/user-data")).status == 404
    assert "default/m1, default/m3" in caplog.text


async def test_two_hardware_with_one_mac_do_not_get_each_others_data(rack: Rack) -> None:
    rack.register("m1", MAC, IP, instance={"userdata": "of m1"})
    rack.register("m2", MAC, OTHER_IP, instance={"userdata": "of m2"})
    for _ in range(2):
        assert (await rack.ask("/latest/user-data", ip=IP)).text == "of m1"
        assert (await rack.ask("/latest/user-data", ip=OTHER_IP)).text == "of m2"


async def test_changed_hardware_is_served_at_once(machines: Any) -> None:
    await machines.ask("/latest/user-data")
    machines.register(instance={"userdata": "new"})
    assert (await machines.ask("/latest/user-data")).text == "new"


async def test_nocloud_files_are_all_there(machines: Any) -> None:
    for who in (MAC, MAC.upper(), MAC.replace(":", "-"), "m1"):
        meta_data = await machines.ask(f"/nocloud/{who}/meta-data", **CLOUD_INIT)
        assert yaml.safe_load(meta_data.text) == {"instance-id": "m1", "local-hostname": "m1"}
    assert (await machines.ask("/nocloud/m1/user-data")).text == "#cloud-config\n# of m1\n"
    assert (await machines.ask("/nocloud/m1/vendor-data")).text == "v1"
    assert "version: 2" in (await machines.ask("/nocloud/m1/network-config")).text
    empty = await machines.ask("/nocloud/m2/vendor-data", ip=OTHER_IP)
    assert (empty.status, empty.body) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/nocloud/m1/user-data",
        f"/nocloud/{MAC}/user-data",
        "//nocloud//m1//user-data",
        "/nocloud/m2%2f..%2fm1/user-data",
        "/nocloud/m2/../m1/user-data",
        f"/ipxe/script/{MAC}/auto.ipxe",
    ],
)
async def test_another_machines_data_has_no_way_in(machines: Any, path: str) -> None:
    reply = await machines.ask(path, ip=OTHER_IP, X_Forwarded_For=IP, Forwarded=f"for={IP}", X_Real_IP=IP, Host=IP)
    assert reply.status in (403, 404)
    assert "of m1" not in reply.text
    own = await machines.ask("/latest/user-data", ip=OTHER_IP, X_Forwarded_For=IP, Forwarded=f"for={IP}")
    assert "of m2" in own.text


async def test_path_of_tootles_with_an_instance_id_gives_the_callers_own_and_hides_who_else_there_is(
    machines: Any,
) -> None:
    assert (await machines.ask("/tootles/instanceID/m1/2009-04-04/user-data")).text == "#cloud-config\n# of m1\n"
    real, invented = [
        await machines.ask(f"/tootles/instanceID/{name}/2009-04-04/user-data", ip=OTHER_IP) for name in ("m1", "m9")
    ]
    assert (real.status, real.text) == (403, "127.0.0.6 is not an address of the instance asked for\n")
    assert (real.status, real.text) == (invented.status, invented.text)


async def test_existing_and_invented_machines_look_the_same_from_outside(machines: Any) -> None:
    real = await machines.ask("/nocloud/m1/user-data", ip=OTHER_IP)
    invented = await machines.ask("/nocloud/m9/user-data", ip=OTHER_IP)
    assert (real.status, real.text) == (invented.status, invented.text)


async def test_look_at_the_headers_alone_is_no_document_on_the_journey(machines: Any) -> None:
    assert (await machines.ask("/latest/user-data", method="HEAD")).headers["Content-Length"] == "22"
    assert machines.lines() == []


async def test_client_name_cannot_fill_the_journey(machines: Any) -> None:
    await machines.ask("/latest/user-data", User_Agent="x" * 3000)
    assert len(machines.lines()[0][2]) < 100


# --- phone home ---


async def test_cloud_init_that_finished_is_on_the_journey(machines: Any) -> None:
    form = {"hostname": "web-1", "instance_id": "m1", "fqdn": "web-1.example.org", "pub_key_rsa": "ssh-rsa AAAA"}
    reply = await machines.ask("/phone-home/m1", method="POST", data=form)
    assert reply.status == 200
    assert machines.lines() == [(Step.METADATA, Outcome.OK, "cloud-init finished on web-1, instance m1")]
    assert machines.journey.events(MAC)[0].detail == {"hostname": "web-1", "instance_id": "m1"}


@pytest.mark.parametrize(
    ("path", "datasource"), [("/2009-04-04/user-data", "Ec2"), ("/nocloud/m1/user-data", "NoCloud")]
)
async def test_report_of_cloud_init_says_on_the_journey_which_datasource_it_had(
    machines: Any, path: str, datasource: str
) -> None:
    await machines.ask(path)
    await machines.ask("/phone-home/m1", method="POST", data={"hostname": "web-1", "instance_id": "i-1"})
    expected = f"cloud-init finished on web-1, instance i-1, datasource {datasource}"
    assert machines.lines()[-1] == (Step.METADATA, Outcome.OK, expected)
    # The next instance may have had its user-data from elsewhere.
    await machines.ask("/phone-home/m1", method="POST", data={"hostname": "web-1", "instance_id": "i-2"})
    assert machines.lines()[-1][2] == "cloud-init finished on web-1, instance i-2"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"a=" + b"x" * 100_000, 413),
        ("&".join(f"a{number}=1" for number in range(100)).encode(), 400),
        (b"\xff\xfe", 200),
    ],
)
async def test_report_is_bounded(machines: Any, data: bytes, status: int) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert (await machines.ask("/phone-home/m1", method="POST", data=data, **form)).status == status
    assert (await machines.ask("/phone-home/m1", method="POST", data=b"{}", Content_Type="text/json")).status == 415


async def test_report_of_a_machine_says_nothing_of_the_one_that_had_its_mac_before(machines: Any) -> None:
    await machines.ask("/latest/user-data")
    machines.register(instance={"userdata": "changed meanwhile"})
    await machines.ask("/phone-home/m1", method="POST", data={"hostname": "m1", "instance_id": "1"})
    assert machines.lines()[-1][2] == "cloud-init finished on m1, instance 1, datasource Ec2"

    await machines.ask("/latest/user-data")
    machines.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
    machines.register("m9")
    await machines.ask("/phone-home/m9", method="POST", data={"hostname": "m9", "instance_id": "2"})
    assert machines.lines()[-1][2] == "cloud-init finished on m9, instance 2"


async def test_report_for_another_machine_is_refused(machines: Any) -> None:
    reply = await machines.ask("/phone-home/m1", ip=OTHER_IP, method="POST", data={"hostname": "evil"})
    assert reply.status == 403
    assert machines.lines() == []


async def test_user_data_that_cloud_init_drops_is_said_when_it_is_sent_and_no_other_is(rack: Rack) -> None:
    rack.register(instance={"userdata": "# cloud-config\nusers: []\n"})
    rack.register("m2", OTHER_MAC, OTHER_IP, instance={"userdata": "#!/bin/sh\n"})
    for ip in (IP, OTHER_IP):
        assert (await rack.ask("/latest/user-data", ip=ip, **CLOUD_INIT)).status == 200
    wrong = "its first line is not #cloud-config, so cloud-init takes nothing of it"
    assert rack.lines() == [(Step.METADATA, Outcome.FAILED, f"user-data to Cloud-Init/22.4.2: {wrong}")]
    assert rack.lines(OTHER_MAC) == [(Step.METADATA, Outcome.OK, "user-data to Cloud-Init/22.4.2")]


async def test_large_user_data_is_checked_once_and_beside_the_event_loop(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []

    def check(user_data: str) -> str:
        checks.append(threading.current_thread().name)
        return problem(user_data)

    monkeypatch.setattr("edge.http.metadata.full.problem", check)
    large = "#cloud-config\n[" + "a," * 15_000 + "]"
    rack.register(instance={"userdata": large})
    for number, path in enumerate(("/latest/user-data", "/nocloud/m1/user-data"), 1):
        assert (await rack.ask(path, **CLOUD_INIT)).text == large
        await until(lambda wanted=number: len(rack.lines()) == wanted)  # type: ignore[misc]
    wrong = "it is YAML, but no mapping of names to values, so cloud-init takes nothing of it"
    sent = "user-data to Cloud-Init/22.4.2"
    assert [line[1:] for line in rack.lines()] == [
        (Outcome.FAILED, f"{sent}: {wrong}"),
        (Outcome.FAILED, f"{sent} (NoCloud): {wrong}"),
    ]
    assert len(checks) == 1, "once for each change of the Hardware"
    assert checks[0].startswith("large")
