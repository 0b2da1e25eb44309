"""OSIEs that name what is the edge's own: a tenant who may write an OSIE, and the machine of theirs that boots it.

    edge's namespace: `tinkedge up` on 172.31.77.1; a service of its host on port 8080 that only its host may reach
    "evil":           172.31.77.66, a web server that redirects, and a DNS server that rebinds
    "near":           the tenant's machine

The edge's host is in a cloud, too: 169.254.169.254 answers on its link.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.interop.attacks import hostile_upstream
from tests.interop.rack import ADDRESS, IN_EDGE, ip
from tests.interop.test_edge_modes import ADDRESSES, MACS, Edge, manifest
from tests.waiting import wait_until

EVIL = "172.31.77.66"
CLOUD = "169.254.169.254"
SECRET = b"what only this host may read"
SERVICE = """
import http.server, socket, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(sys.argv[1])))
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
Server(("::", 8080), Handler).serve_forever()
"""


class CloudEdge(Edge):
    """An edge on a host that asks the tenant's DNS server for names."""

    def add(self, where: str) -> None:
        super().add(where)
        if where == IN_EDGE:  # `ip netns exec` puts it in the place of /etc/resolv.conf
            self.etc = Path("/etc/netns") / self.namespaces[where]
            self.etc.mkdir(parents=True)
            (self.etc / "resolv.conf").write_text(f"nameserver {EVIL}\noptions timeout:20 attempts:1\n")

    def remove(self) -> None:
        super().remove()
        shutil.rmtree(self.etc, ignore_errors=True)


@contextlib.contextmanager
def in_a_cloud(directory: Path, *options: str) -> Iterator[Edge]:
    with CloudEdge(directory) as edge:
        edge.up(*options)
        edge.machine("near", address=ADDRESSES["near"])
        edge.register("near", ADDRESSES["near"])
        edge.machine("evil", "52:54:00:00:01:66", address=EVIL)
        edge.start("evil", sys.executable, hostile_upstream.__file__, EVIL, "80", EVIL)
        ip("-n", edge.namespaces[IN_EDGE], "address", "add", "fd00:77::1/64", "dev", "rack0", "nodad")
        edge.machine("cloud", "52:54:00:00:01:67", address=CLOUD)
        ip("-n", edge.namespaces[IN_EDGE], "route", "add", f"{CLOUD}/32", "dev", "rack0")
        ip("-n", edge.namespaces["cloud"], "route", "add", "172.31.77.0/24", "dev", "eth0")
        for where in (IN_EDGE, "cloud"):
            edge.start(where, sys.executable, "-c", SERVICE, SECRET.decode())
            wait_until(lambda where=where: "8080" in edge.run(where, "ss", "-Hltn").out)  # type: ignore[misc]
        wait_until(lambda: edge.run(IN_EDGE, "curl", "-s", f"http://{EVIL}/good/1").popen.returncode == 0)
        declare(edge, REACHED)
        yield edge


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with in_a_cloud(tmp_path_factory.mktemp("osie-urls")) as edge:
        yield edge


def boot(edge: Edge, name: str, url: str = "", **annotations: str) -> tuple[int, bytes]:
    """Return the kernel that the tenant's machine receives of an OSIE, which has this `url` from now on."""
    if url:
        declare(edge, {name: url}, **annotations)
    wait_until(lambda: b"does not exist" not in edge.get("near", f"/osie/{name}/kernel")[1])
    return edge.get("near", f"/osie/{name}/kernel")


def declare(edge: Edge, urls: dict[str, str], **annotations: str) -> None:
    specs = {name: {"kernelUrl": url, "initrdUrl": "http://192.0.2.1/initrd"} for name, url in urls.items()}
    items = [json.loads(manifest("OSIE", name, spec, **annotations)) for name, spec in specs.items()]
    edge.kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


REACHED = {
    "loopback": "http://127.0.0.1:8080/",
    "another-loopback": "http://127.9.9.9:8080/",
    "localhost": "http://localhost:8080/",
    "hexadecimal": "http://0x7f000001:8080/",
    "zero": "http://0.0.0.0:8080/",
    "ipv6": "http://[::1]:8080/",
    "ipv6-zero": "http://[::]:8080/",
    "mapped": "http://[::ffff:127.0.0.1]:8080/",
    "mapped-hexadecimal": "http://[::ffff:7f00:1]:8080/",
    "own": f"http://{ADDRESS}:8080/",
    "own-mapped": f"http://[::ffff:{ADDRESS}]:8080/",
    "own-ipv6": "http://[fd00:77::1]:8080/",
    "redirect": f"http://{EVIL}/to/{quote('http://127.0.0.1:8080/', '')}",
    "redirect-to-own": f"http://{EVIL}/to/{quote(f'http://{ADDRESS}:8080/', '')}",
    "two-redirects": f"http://{EVIL}/to/{quote(f'http://{EVIL}/to/' + quote('http://[::1]:8080/', ''), '')}",
    "cloud": f"http://{CLOUD}:8080/",
    "redirect-to-cloud": f"http://{EVIL}/to/{quote(f'http://{CLOUD}:8080/', '')}",
    "decimal": "http://2130706433:8080/",
    "short": "http://127.1:8080/",
    "octal": "http://0177.0.0.1:8080/",
    "cloud-mapped": f"http://[::ffff:{CLOUD}]:8080/",
}

NO_URL = ("decimal", "short", "octal")
"""Ways to write an address that the HTTP library does not know."""


def test_tenant_reads_nothing_that_only_the_edge_can_reach(edge: Edge) -> None:
    for name in REACHED:
        status, body = boot(edge, name)
        assert (status, SECRET in body) == (502, False), body
        output = body.decode()
        assert f"OSIE default/{name}: kernelUrl http://" in output
        assert "from which nothing is fetched" in output or name in NO_URL
        assert "--allow-upstream" in output or name in NO_URL
        assert output.strip() in edge.journey(MACS["near"], "failed")[-1]


def test_name_that_is_bound_again_to_loopback_is_not_followed_there(edge: Edge) -> None:
    lookup = edge.run(IN_EDGE, "getent", "ahostsv4", "rebound.example")
    assert lookup.out.startswith(EVIL)  # a check at an earlier lookup would have passed
    status, body = boot(edge, "rebound", "http://rebound.example:8080/")
    assert (status, SECRET in body) == (502, False)
    assert b"127.0.0.1 is a loopback address, from which nothing is fetched" in body


def test_second_address_of_a_name_is_not_tried_when_it_is_loopback(edge: Edge) -> None:
    status, body = boot(edge, "both", "http://both.example:8080/")  # where the first one does not listen
    assert (status, SECRET in body) == (502, False)
    assert boot(edge, "both-80", "http://both.example/good/50000") == (200, hostile_upstream.honest(50_000))


def test_honest_upstream_beside_is_served(edge: Edge) -> None:
    content = hostile_upstream.honest(50_000)
    assert boot(edge, "honest", f"http://{EVIL}/good/50000") == (200, content)
    assert boot(edge, "moved", f"http://{EVIL}/to/{quote(f'http://{EVIL}/good/50000', '')}") == (200, content)


def test_checksum_of_another_tenants_file_is_no_permission_to_read_it(edge: Edge) -> None:
    """The file is in the edge's cache. The owner's OSIE names it by a URL with the password of its upstream."""
    content = hostile_upstream.honest(60_000)
    assert boot(edge, "theirs", f"http://user:password@{EVIL}/private/60000") == (200, content)
    pin = {"kernel-sha256": hashlib.sha256(content).hexdigest()}
    for name, path in (("without-password", "private/60000"), ("other-file", "good/50000")):
        status, body = boot(edge, name, f"http://{EVIL}/{path}", **pin)
        assert content[-1000:] not in body, f"OSIE {name} reads the other tenant's file"
        assert status != 200 or len(body) < 60_000
    assert boot(edge, "theirs-pinned", f"http://user:password@{EVIL}/private/60000", **pin) == (200, content)


@pytest.fixture(scope="module")
def edge_with_allowed_upstreams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """An edge that is allowed its own host."""
    options = ("--allow-upstream", "127.0.0.0/8", "--allow-upstream", f"::1,{ADDRESS}")
    with in_a_cloud(tmp_path_factory.mktemp("edge_with_allowed_upstreams"), *options) as edge:
        yield edge


def test_operator_allows_upstreams_on_the_edge_itself_and_what_was_not_allowed_stays_closed(
    edge_with_allowed_upstreams: Edge,
) -> None:
    for name in ("loopback", "localhost", "ipv6", "own", "redirect", "mapped"):
        assert boot(edge_with_allowed_upstreams, name) == (200, SECRET), name
    for name in ("cloud", "redirect-to-cloud", "cloud-mapped"):
        status, body = boot(edge_with_allowed_upstreams, name)
        assert (status, SECRET in body) == (502, False), name
    for name, url in (("admin", "http://127.0.0.1:7081/api/v1/machines"), ("itself", f"http://{ADDRESS}:7080/readyz")):
        status, body = boot(edge_with_allowed_upstreams, name, url)
        assert status == 502, "the edge does not ask itself, whatever is allowed"
        assert b"is this host, where port 708" in body
