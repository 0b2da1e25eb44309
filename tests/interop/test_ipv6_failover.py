"""Two edges on one link without IPv4: the one that serves a machine is killed, and the machine goes on with the other.

edge's namespace: rack0 fd77:2::1 --- eth0 fd77:2::2 of the second edge
                                  --- eth0 of the machine
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.rack import IN_EDGE, Namespaces, Process, ip, manifest
from tests.waiting import wait_until

pytestmark = pytest.mark.long

MAC, ADDRESS, MACHINE, SECOND = "52:54:00:77:02:01", "fd77:2::50", "machine", "edge2"
EDGES = {IN_EDGE: ("rack0", "fd77:2::1"), SECOND: ("eth0", "fd77:2::2")}
LEASE_SECONDS = 24
REPLY = "DHCPv6 REPLY"  # also that of a renewal


class TwoEdges(Namespaces):
    """The edges know each other by --peer, and have the same objects."""

    def build(self) -> None:
        self.add(IN_EDGE)
        ip("-n", self.namespaces[IN_EDGE], "link", "add", "rack0", "type", "bridge", "forward_delay", "0")
        ip("-n", self.namespaces[IN_EDGE], "link", "set", "rack0", "up")
        for where, mac in ((SECOND, "52:54:00:77:02:02"), (MACHINE, MAC)):
            self.add(where)
            self.card(where, "eth0", mac, "rack0")
        for where, (card, address) in EDGES.items():
            ip("-n", self.namespaces[where], "address", "add", f"{address}/64", "dev", card, "nodad")
        boot, objects, key = (self.directory / name for name in ("ipxe", "manifests", "key"))
        boot.mkdir()
        objects.mkdir()
        (boot / "snponly.efi").write_bytes(b"MZ" * 1000)
        key.write_text("a-key-that-both-edges-have-to-know-each-other-by\n")
        key.chmod(0o600)
        dhcp = {"ipv6": {"address": ADDRESS}, "leaseTimeSeconds": LEASE_SECONDS}
        specs = {
            "Hardware": {"networkInterfaces": {MAC: {"dhcp": dhcp}}, "osie": {"name": "stub"}},
            "OSIE": {"kernelUrl": "http://mirror/k", "initrdUrl": "http://mirror/i"},
        }
        for kind, spec in specs.items():
            (objects / f"{kind}.json").write_text(manifest(kind, "stub", spec))
        self.edges: dict[str, Process] = {}
        for (where, (card, _)), (_, other) in zip(EDGES.items(), reversed(EDGES.values()), strict=True):
            self.edges[where] = self.tinkedge(
                *(where, "up", "--ipv6", "--router-advertisements", "--interface", card, "--manifests", objects),
                *("--data-dir", self.directory / where, "--ipxe-dir", boot, "--metadata-token-key", key),
                *("--peer", f"[{other}]:7080"),
            )
        for edge in self.edges.values():
            self.started(edge)

    def get(self, address: str, path: str) -> str:
        return self.curl(MACHINE, f"http://[{address}]:7080{path}")

    def output(self) -> str:
        return "\n".join(edge.err[-1500:] for edge in self.edges.values())


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoEdges]:
    with TwoEdges(tmp_path_factory.mktemp("failover")) as made:
        yield made


def test_machine_keeps_its_address_and_has_its_script_from_the_other_edge(site: TwoEdges) -> None:
    script = site.directory / "script"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$reason $new_ip6_address" >> {site.directory}/events\n'
        '[ -z "$new_ip6_address" ] || ip -6 address replace "$new_ip6_address/64" dev eth0 nodad\n'
    )
    script.chmod(0o755)
    events = site.directory / "events"
    # dhclient exits at once while duplicate address detection runs.
    command = ("ip", "-6", "address", "show", "dev", "eth0", "scope", "link", "-tentative")
    wait_until(lambda: "inet6" in site.run(MACHINE, *command).out)
    files = ("-lf", site.directory / "leases", "-pf", site.directory / "pid", "-sf", script)
    client = site.start(MACHINE, "dhclient", "-6", "-d", *files, "eth0")

    def has_reasons(*reasons: str) -> bool:
        lines = events.read_text().splitlines() if events.exists() else []
        return any(f"{reason} {ADDRESS}" in lines for reason in reasons)

    wait_until(lambda: has_reasons("BOUND6"), lambda: client.err + site.output())
    wait_until(lambda: any(REPLY in edge.err for edge in site.edges.values()), site.output)
    (serving,) = [where for where, edge in site.edges.items() if REPLY in edge.err]
    (other,) = set(site.edges) - {serving}
    mine, its = EDGES[serving][1], EDGES[other][1]
    wait_until(lambda: f"http://[{its}]:7080" in site.get(mine, "/auto.ipxe"), site.output)
    assert f"grpc_authority=[{mine}]:42113" in site.get(mine, "/auto.ipxe")

    site.edges[serving].popen.kill()
    site.edges[serving].status()
    assert f"grpc_authority=[{its}]:42113" in site.get(its, "/auto.ipxe"), "at once, by HTTP"
    assert site.get(its, "/2009-04-04/meta-data/ipv6") == ADDRESS
    assert not has_reasons("REBIND6")
    wait_until(lambda: has_reasons("REBIND6"), lambda: client.err + site.output(), within=3 * LEASE_SECONDS)
    wait_until(lambda: REPLY in site.edges[other].err, site.output)
    assert f"EXPIRE6 {ADDRESS}" not in events.read_text(), "its address was its own all the time"
