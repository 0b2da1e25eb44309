"""Ignition and Afterburn, as they ask: requests of the bytes that their HTTP libraries send, to a running edge.

Both are programs of Fedora CoreOS and Flatcar, and in no package of Debian. What they do is read from the sources of
Ignition 2 (internal/providers/aws and cmdline, internal/resource) and Afterburn 5.10 (src/providers/aws, src/retry):
  * Ignition with `ignition.platform.id=aws`: PUT of a token, then its user-data in version 2019-10-01 (before Ignition
    2.4, in 2009-04-04). 404 for the token means there are none; any other 4xx is the end, 5xx is retried endlessly.
    With `ignition.config.url=URL`, a GET without a token. 404 and an empty body mean "no config"; 200 and 204 are read.
  * Afterburn: PUT of a token with a Content-Type and no body, tried eleven times if it fails, then values in version
    2021-01-03. 404 means that there is no such value, anything else but 200 is tried eleven times. It splits each line
    of public-keys at every `=`, and gives up unless there is exactly one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPResponse

import pytest

from tests.interop.cloud_init.rack import MetadataRack, Registered
from tests.interop.conftest import in_namespace
from tests.interop.rack import ADDRESS

CONFIG = json.dumps({"ignition": {"version": "3.4.0"}, "storage": {}})
KEYS = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBJmHi2b0lmbUaodGcZfYcKqm6dSYYFVxvEYCwNbmTLn a=b c=d",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEQ6tZ0kYT0H0qtyXfLYVPMAE3T5dfE0N1aYFFXKGMBm",
]
FLATCAR = Registered(
    "flatcar", "52:54:00:00:0a:01", "172.31.77.40", {"ssh-public-keys": "\n".join(KEYS)}, userdata=CONFIG
)
BARE = Registered("bare", "52:54:00:00:0a:02", "172.31.77.41")

TTL = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "x-aws-ec2-metadata-token"


@pytest.fixture(scope="module", params=["optional", "required"])
def rack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataRack]:
    """An edge that takes requests without session tokens, and one that does not."""
    with MetadataRack(tmp_path_factory.mktemp("rack")) as running:
        running.up("--disable", "dhcp", "--disable", "tftp", "--imds-tokens", request.param)
        running.register(FLATCAR, BARE)
        yield running


class Wire:
    """One connection of a machine to the edge."""

    def __init__(self, rack: MetadataRack, machine: Registered) -> None:
        namespace = rack.namespaces[machine.name]
        self._socket = in_namespace(namespace, lambda: socket.create_connection((ADDRESS, 7080), 5))
        self.close = self._socket.close

    def ask(self, request: str) -> tuple[int, bytes]:
        self._socket.sendall(request.replace("\n", "\r\n").encode())
        answer = HTTPResponse(self._socket)
        answer.begin()
        return answer.status, answer.read()


Connect = Callable[[Registered], Wire]


@pytest.fixture
def connect(rack: MetadataRack) -> Iterator[Connect]:
    with ExitStack() as exits:
        yield lambda machine: exits.enter_context(closing(Wire(rack, machine)))


# --- Ignition: net/http of Go -----------------------------------------------------------------------------------------


IGNITION = """HTTP/1.1
Host: 169.254.169.254
User-Agent: Ignition/2.20.0
Accept: application/vnd.coreos.ignition+json;version=3.5.0, */*;q=0.1
Accept-Encoding: identity
"""


def ignition(wire: Wire, path: str, token: str = "") -> tuple[int, bytes]:
    shown = f"X-Aws-Ec2-Metadata-Token: {token}\n" if token else ""
    return wire.ask(f"GET {path} {IGNITION}{shown}\n")


def ignition_token(wire: Wire) -> str:
    more = "Content-Length: 0\nX-Aws-Ec2-Metadata-Token-Ttl-Seconds: 21600\n\n"
    status, token = wire.ask(f"PUT /latest/api/token {IGNITION}{more}")
    assert status == 200
    return token.decode()


def test_ignition_fetches_a_token_and_then_its_config_or_goes_on_without_one(connect: Connect) -> None:
    wire = connect(FLATCAR)
    token = ignition_token(wire)
    for version in ("2019-10-01", "2009-04-04", "latest"):
        assert ignition(wire, f"/{version}/user-data", token) == (200, CONFIG.encode())
    bare = connect(BARE)
    assert ignition(bare, "/2019-10-01/user-data", ignition_token(bare))[0] == 404


def test_ignition_config_url_needs_no_token_where_none_is_required(
    connect: Connect, request: pytest.FixtureRequest
) -> None:
    wire = connect(FLATCAR)
    status, body = ignition(wire, "/2009-04-04/user-data")
    if "optional" in request.node.name:
        assert (status, body) == (200, CONFIG.encode())
    else:
        assert status == 401


# --- Afterburn: hyper of Rust -----------------------------------------------------------------------------------------


def afterburn_token(wire: Wire) -> str:
    status, token = wire.ask(
        f"PUT /latest/api/token HTTP/1.1\n{TTL}: 21600\ncontent-type: text/plain; charset=utf-8\naccept: */*\n"
        "host: 169.254.169.254\ncontent-length: 0\n\n"
    )
    assert status == 200
    return token.decode()


def afterburn(wire: Wire, token: str, name: str) -> str | None:
    """The value, if there is one. Any status but 200 and 404 would make Afterburn wait for nearly a minute."""
    request = f"GET /2021-01-03/{name} HTTP/1.1\n{TOKEN}: {token}\naccept: */*\nhost: 169.254.169.254\n\n"
    status, body = wire.ask(request)
    assert status in (200, 404)
    return body.decode() if status == 200 else None


def test_afterburn_reads_its_attributes_and_gets_404_for_cloud_only_ones(connect: Connect) -> None:
    wire = connect(FLATCAR)
    token = afterburn_token(wire)
    assert afterburn(wire, token, "meta-data/instance-id") == "flatcar"
    assert afterburn(wire, token, "meta-data/hostname") == "flatcar"
    assert afterburn(wire, token, "meta-data/local-ipv4") == FLATCAR.address
    for absent in (
        "meta-data/instance-type",
        "meta-data/public-ipv4",
        "meta-data/ipv6",
        "meta-data/placement/availability-zone",
        "meta-data/placement/availability-zone-id",
        "meta-data/public-hostname",
        "dynamic/instance-identity/document",
    ):
        assert afterburn(wire, token, absent) is None


def test_afterburn_finds_each_ssh_key_though_comments_have_equals_signs(connect: Connect) -> None:
    wire = connect(FLATCAR)
    token = afterburn_token(wire)
    listing = afterburn(wire, token, "meta-data/public-keys")
    assert listing is not None
    numbers = []
    for line in listing.splitlines():
        tokens = line.split("=")
        assert len(tokens) == 2, "error parsing keyID"
        numbers.append(tokens[0])
    assert [afterburn(wire, token, f"meta-data/public-keys/{number}/openssh-key") for number in numbers] == KEYS
    bare = connect(BARE)
    assert afterburn(bare, afterburn_token(bare), "meta-data/public-keys") is None
