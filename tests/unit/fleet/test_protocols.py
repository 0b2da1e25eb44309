"""The fleet speaks as firmware, iPXE and agents do, and takes what real ones take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from edge.dhcp import DhcpSettings, Received, Responder
from edge.dhcp.wire import MessageType, codec, options
from edge.dhcp_common import DhcpSite
from edge.fleet.network import arp_answer
from edge.fleet.protocols import http
from edge.fleet.protocols.dhcp import Clients, Conversation, NakError
from edge.fleet.protocols.grpc import UNAVAILABLE, Call, GrpcConnection
from edge.fleet.protocols.ipxe import Answer, ConfigureNetwork, Exit, Fetch, Interpreter, KernelStart, Sleep, Wanted
from edge.fleet.protocols.tftp import Reading, Reads, TftpError
from edge.machines import DhcpMode, Inventory, NetbootPolicy, NetbootWhen
from edge.tftp.blocks import OctetBlocks
from edge.tftp.packets import negotiate, oack, parse_request
from edge.tftp.transfer import ReadTransfer
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, EdgeOrigin, Scripts
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceServicer, add_WorkflowServiceServicer_to_server
from tests.support.objects import hardware
from tink.api.v1alpha2 import Hardware

# --- DHCP, and ARP for the machines -----------------------------------------------------------------------------------


MAC = bytes.fromhex("02f1ee000001")
UUID = bytes(range(16))
XID = b"\1\2\3\4"
RELAY = options.ipv4("10.9.0.2")
ADDRESS = "10.9.1.1"


def responder(tmp_path: Path, *, pending: bool = True) -> Responder:
    for name in ("undionly.kpxe", "snponly.efi"):
        (tmp_path / name).write_bytes(b"MZ" + bytes(1000))
    inventory = Inventory()
    policy = NetbootPolicy(DhcpMode.RESERVATION, NetbootWhen.WORKFLOW, lambda _namespace, _name: pending)

    settings = DhcpSettings("10.9.0.1", "10.9.0.1", "http://10.9.0.1:7080")
    site = DhcpSite(inventory, policy, BootBinaries(tmp_path), lambda *_, **__: None, lambda: 0.0)
    made = Responder(site, settings)
    inventory.on_change(made.machine_changed)
    dhcp = {"netmask": "255.255.0.0", "gateway": "10.9.0.2"}
    inventory.apply(hardware("m", MAC.hex(":"), ADDRESS, dhcp=dhcp, osie={"name": "lab"}))
    return made


def carried_out(server: Responder, client: Clients, giaddr: bytes = bytes(4)) -> Conversation:
    source = options.dotted(giaddr)
    conversation = Conversation(client.value, MAC, UUID, XID, giaddr)
    for _ in range(2):
        reply = server.respond(conversation.packet(0), Received(source, 67 if any(giaddr) else 68, 67))
        if reply is not None and conversation.receive(reply.payload):
            conversation.take()
    return conversation


@pytest.mark.parametrize("giaddr", [bytes(4), RELAY], ids=["direct", "relay"])
@pytest.mark.parametrize(
    ("client", "file"),
    [
        (Clients.BIOS, "undionly.kpxe"),
        (Clients.UEFI, "snponly.efi"),
        (Clients.UEFI_HTTP, f"http://10.9.0.1:7080/ipxe/binary/{MAC.hex(':')}/snponly.efi"),
        (Clients.IPXE_BIOS, f"http://10.9.0.1:7080/ipxe/script/{MAC.hex(':')}/auto.ipxe"),
        (Clients.IPXE_UEFI, f"http://10.9.0.1:7080/ipxe/script/{MAC.hex(':')}/auto.ipxe"),
        (Clients.OSIE, ""),
        (Clients.SYSTEM, ""),
    ],
)
def test_each_client_gets_what_is_meant_for_it(tmp_path, client, file, giaddr):
    done = carried_out(responder(tmp_path), client, giaddr)
    lease = done.lease
    assert done.waits_for_proxy == 0 or client is not Clients.IPXE_UEFI
    assert (lease.address, lease.server, lease.file, lease.local_boot) == (ADDRESS, "10.9.0.1", file, False)
    if client in (Clients.BIOS, Clients.UEFI):  # a ROM that is to boot its disk hears so
        assert carried_out(responder(tmp_path, pending=False), client, giaddr).lease.local_boot


def reply_to(conversation: Conversation, kind: MessageType, **changed: Any) -> bytes:
    asked = codec.parse(conversation.packet(0))
    values = {options.MESSAGE_TYPE: bytes((kind,)), options.SERVER_IDENTIFIER: bytes((10, 9, 0, 1))}
    answer = asked._replace(op=codec.BOOTREPLY, yiaddr=options.ipv4(ADDRESS), options=values, **changed)
    return codec.build(answer)


@pytest.mark.parametrize("changed", [{"xid": b"\0\0\0\1"}, {"chaddr": bytes(6)}], ids=["xid", "chaddr"])
def test_answer_to_somebody_else_is_passed_over(changed):
    conversation = Conversation(Clients.OSIE.value, MAC, UUID, XID)
    assert not conversation.receive(reply_to(conversation, MessageType.OFFER, **changed))
    assert not conversation.receive(b"no DHCP")
    assert conversation.packet(0)[240:243] == b"\x35\x01\x01", "it is still a DISCOVER"
    by_http = Conversation(Clients.UEFI_HTTP.value, MAC, UUID, XID)
    assert not by_http.receive(reply_to(by_http, MessageType.OFFER, file=b"http://10.9.0.1/x.efi")), "without its class"
    assert conversation.receive(reply_to(conversation, MessageType.OFFER))
    conversation.take()
    with pytest.raises(NakError):
        conversation.receive(reply_to(conversation, MessageType.NAK))


def test_arp_for_a_machine_is_answered_with_its_mac():
    asker, address = bytes.fromhex("525400000001"), options.ipv4(ADDRESS)
    head = b"\xff" * 6 + asker + b"\x08\x06" + bytes.fromhex("0001080006040001")
    request = head + asker + options.ipv4("10.9.0.1") + bytes(6) + address
    answer = arp_answer(request, {address: MAC})
    assert answer is not None
    assert (answer[:6], answer[6:12], answer[22:28], answer[28:32]) == (asker, MAC, MAC, address)
    assert arp_answer(request, {}) is None
    assert arp_answer(request[:20], {address: MAC}) is None


# --- TFTP, from the server's own transfers, over a wire that loses datagrams ------------------------------------------


NAME = "snponly.efi"


def served(reading: Reading, content: bytes, lost: Callable[[int], bool] = lambda _number: False) -> int:
    """Let a transfer run; how many datagrams there were. Time passes when nothing is on the way."""
    request = parse_request(reading.packet())
    agreed = negotiate(request, len(content), 1468)
    transfer = ReadTransfer(OctetBlocks(content, agreed.block_bytes, None), agreed, 0.0, request_bytes=40)
    now, count = 0.0, 0
    burst = transfer.start(now)
    while not reading.done:
        packets = [bytes(burst[at]) + bytes(burst[at + 1]) for at in range(0, len(burst), 2)]
        answers = []
        for packet in packets:
            count += 1
            if not lost(count) and (answer := reading.receive(packet)) is not None:
                answers.append(answer)
        burst = []
        for answer in answers:
            count += 1
            if not lost(count):
                burst = [*burst, *transfer.receive(answer, now)]
        if not burst and not reading.done:
            now += 4.0
            burst = transfer.expire(now) or transfer.receive(reading.repeated(), now)
        assert count < 10_000
    return count


@pytest.mark.parametrize("reads", Reads)
@pytest.mark.parametrize(
    ("size", "every"),
    [*((size, 0) for size in (1, 1455, 1456, 1468, 1468 * 4)), *((100_000, n) for n in (0, 3, 7, 20))],
)
def test_file_comes_whole_though_datagrams_are_lost(reads, size, every):
    reading = Reading(NAME, reads.value[1])
    count = served(reading, bytes(size), lambda number: every > 0 and number % every == 0)
    assert reading.received == size
    if reads is Reads.UEFI and size == 100_000 and not every:
        single = served(Reading(NAME, Reads.BIOS.value[1]), bytes(size))
        assert count < 0.7 * single, "EDK2 takes four blocks for one acknowledgement"


@pytest.mark.parametrize("reads", Reads)
def test_probe_learns_the_size_and_takes_no_file(reads):
    reading = Reading(NAME, reads.value[0], probe=True)
    request = parse_request(reading.packet())
    answer = reading.receive(oack(negotiate(request, 240_000, 1468).accepted))
    assert (answer or b"")[:4] == b"\0\5\0\x08"
    assert (reading.size, reading.received, reading.done) == (240_000, 0, True)


@pytest.mark.parametrize(
    ("packet", "says"),
    [
        (b"\0\6blksize\x009000\0", "larger blksize"),
        (b"\0\6timeout\x001\0", "not requested: timeout"),
        (b"\0\6blksize\0many\0", "without a number"),
        (b"\0\5\0\1no such file\0", "error 1: no such file"),
    ],
)
def test_server_that_does_not_do_as_it_should_is_refused(packet, says):
    with pytest.raises(TftpError, match=says):
        Reading(NAME, Reads.UEFI.value[1]).receive(packet)


# --- HTTP: bodies are counted to their last byte, and what is no whole answer is an error -----------------------------


SIZE = 9_000_000
Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                await serve(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    made = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{made.sockets[0].getsockname()[1]}/file"
    finally:
        made.close()


def head(size: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode()


async def whole(request: bytes, writer: asyncio.StreamWriter) -> None:
    ranged = b"Range: bytes=8999999-" in request
    writer.write(head(1, "206 Partial Content") if ranged else head(SIZE))
    if not request.startswith(b"HEAD"):
        writer.write(bytes(1 if ranged else SIZE))


async def test_large_body_is_counted_and_the_text_of_an_error_is_kept_at_the_machines_own_address():
    async with server(whole) as url:
        found = await http.get("127.0.0.2", url, keep=False)
        by_reference = await http.length("127.0.0.2", url)
    assert (found.status, found.length, found.body) == (200, SIZE, b"")
    assert (by_reference.status, by_reference.length, len(by_reference.body)) == (200, SIZE, 1)
    with pytest.raises(http.HttpError, match="Connection refused"):
        await http.get("127.0.0.2", url)  # the listener is gone
    peers = []

    async def refuses(_request, writer):
        peers.append(writer.get_extra_info("peername")[0])
        writer.write(head(7, "404 Not Found") + b"no such")

    async with server(refuses) as url:
        for address in ("127.0.0.2", "127.0.0.3"):
            found = await http.get(address, url, keep=False)
            assert (found.status, found.body) == (404, b"no such")
    assert peers == ["127.0.0.2", "127.0.0.3"]
    for other in ("https://h/x", "tftp://h/x", "http:///x", "http://h:port/x"):
        with pytest.raises(http.HttpError):
            http.Url.of(other)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (head(100) + b"half", "broken off, 96 bytes before the end"),
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "no Content-Length"),
        (b"SSH-2.0-x\r\n\r\n", "file"),
        (head(http.MAX_KEPT_BYTES + 1), "where a script or a document was expected"),
    ],
)
async def test_answer_that_is_not_whole_is_an_error(answer, says):
    async def serve(_request, writer):
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with server(serve) as url:
        with pytest.raises(http.HttpError, match=says):
            await http.get("127.0.0.2", url)


# --- iPXE scripts: those that the edge renders, and the corners of the language ---------------------------------------


MAC_TEXT = "02:f1:ee:00:00:01"


def run_script(text: str, answers: dict[str, Any] | None = None) -> tuple[Exit, list[Wanted]]:
    """How a script ends, and what it wanted: a fetch is answered by the end of its URL, or by what it is for."""
    wanted: list[Wanted] = []
    script = Interpreter(text, {"mac": MAC_TEXT, "filename": "http://10.9.0.1/auto.ipxe"}).run()
    answer: Answer = None
    try:
        while True:
            wanted.append(step := script.send(answer))
            given = answers or {}
            if isinstance(step, Fetch):
                answer = next(
                    (value for key, value in given.items() if step.url.endswith(key)), given.get(step.what, "")
                )
            else:
                answer = isinstance(step, ConfigureNetwork)
    except StopIteration as end:
        found: Exit = end.value
        return found, wanted


def rendered(**spec: Any) -> str:
    machine = Hardware.model_validate(hardware(mac=MAC_TEXT, ip=None, osie={"name": "lab"}, **spec))
    scripts = Scripts(BootSettings(token=lambda _mac: "secret"))
    return scripts.to_send(MAC_TEXT, scripts.compile(MAC_TEXT, machine, EdgeOrigin("10.9.0.1")))


def test_script_of_the_edge_boots_kernel_and_initrd():
    found, wanted = run_script(rendered())
    fetched = [step.url.partition("?")[0].rpartition("/")[2] for step in wanted if isinstance(step, Fetch)]
    assert fetched == ["kernel", "initrd", "starting"]
    assert found.booted is not None
    assert found.booted.initrds == ("http://10.9.0.1:7080/osie/lab/initrd",)
    words = found.booted.command_line.split()
    assert {"tinkerbell_token=secret", f"worker_id={MAC_TEXT}", "grpc_authority=10.9.0.1:42113"} <= set(words)


def test_script_of_the_edge_tries_again_and_asks_for_the_reason():
    why = "#!ipxe\necho the disk is full\nexit 1\n"
    found, wanted = run_script(rendered(), {"/kernel": None, "?failed": why})
    urls = [step.url for step in wanted if isinstance(step, Fetch)]
    assert urls.count("http://10.9.0.1:7080/osie/lab/kernel") == 5
    assert sum(isinstance(step, Sleep) for step in wanted) == 4
    assert (found.booted, found.status, found.shown) == (None, 1, "the disk is full")


def test_script_of_the_edge_asks_for_another_edge_where_this_one_is_gone():
    found, wanted = run_script(rendered(), {"/kernel": None, "?failed": None, "auto.ipxe": None})
    assert any(isinstance(step, ConfigureNetwork) for step in wanted)
    assert found.booted is None


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("iseq a a && echo yes || echo no", "yes"),
        ("iseq a b && echo yes || echo no", "no"),
        ("iseq a b || iseq b b && echo yes", "yes"),
        ("isset ${nothing} ||\necho goes on", "goes on"),
        ("set x ${mac}\necho ${x} ${net0/mac}", f"{MAC_TEXT} {MAC_TEXT}"),
        ("set n:int32 4\ninc n\ninc n 2\necho ${n}", "7"),
        ("set a b\nset b c\necho ${${a}}", "c"),
        ("goto there\necho no\n:there\necho yes", "yes"),
        ("set x a b\necho ${x:uristring}", "a%20b"),
        ("echo one ; echo two", "two"),
    ],
)
def test_language_is_that_of_ipxe(line, shown):
    found, _ = run_script(f"#!ipxe\n{line}\n")
    assert (found.shown, found.status) == (shown, 0)
    found, _ = run_script("#!ipxe\nset x 1\nchain --replace http://h/next\n", {"next": "#!ipxe\necho ${x}\nexit 3\n"})
    assert (found.shown, found.status) == ("1", 3), "a chained script goes on with the same settings"
    found, _ = run_script("#!ipxe\nkernel http://h/k a=b\nimgfetch --name sign http://h/s\nimgfree sign\nboot\n")
    assert found.booted == KernelStart("http://h/k", "a=b", ()), "freeing one image keeps the kernel"


@pytest.mark.parametrize("line", ["nonsense", "iseq a b", "goto nowhere", "boot", "sleep soon"])
def test_command_that_fails_ends_the_script(line):
    found, _ = run_script(f"#!ipxe\n{line}\nkernel http://10.9.0.1/kernel\nboot\n")
    assert (found.booted, found.status) == (None, 1)


@pytest.mark.parametrize("text", [":again\ngoto again\n", "chain http://h/self ||\n"])
def test_script_without_an_end_is_ended(text):
    found, _ = run_script(f"#!ipxe\n{text}", {"self": "#!ipxe\nchain http://h/self\n"})
    assert found.booted is None


# --- gRPC against grpcio's own server ---------------------------------------------------------------------------------


METHOD = b"/internal.proto.workflow.v2.WorkflowService/"


class Owner:
    def __init__(self) -> None:
        self.is_connected = asyncio.Event()
        self.is_lost = asyncio.Event()

    def connected(self) -> None:
        self.is_connected.set()

    def lost(self, why: str) -> None:
        self.is_lost.set()


class Service(WorkflowServiceServicer):
    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.events = 0

    async def GetWorkflows(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's name
        self.received.append(dict(context.invocation_metadata()) | {"agent": request.agent_id})
        await context.send_initial_metadata((("tinkedge-token", "next"),))
        for number in range(3):
            yield pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id=str(number)))

    async def PublishEvent(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.events += 1
        if request.event.workflow_id == "gone":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such workflow")
        return pb.PublishEventResponse()


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[tuple[GrpcConnection, Owner, grpc.aio.Server]]:
    server = grpc.aio.server()
    add_WorkflowServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    owner = Owner()
    connection = GrpcConnection(f"127.0.0.1:{port}", owner.connected, owner.lost)
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
    try:
        yield connection, owner, server
    finally:
        connection.close()
        await server.stop(None)


async def ended(connection: GrpcConnection, method: bytes, request: bytes, **callbacks: Any) -> tuple[int, str]:
    done: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
    fields = callbacks.pop("fields", ())
    call = Call(lambda status, text: done.set_result((status, text)), **callbacks)
    connection.call(METHOD + method, request, fields, call)
    return await done


def event(workflow: str) -> bytes:
    return pb.PublishEventRequest(event=pb.Event(workflow_id=workflow)).SerializeToString()


async def test_stream_gives_its_messages_token_and_end():
    service, messages, fields = Service(), [], {}
    async with connected(service) as (connection, _, _):
        request = pb.GetWorkflowsRequest(agent_id="m-1").SerializeToString()
        given = (b"authorization", b"Bearer " + b"x" * 300)
        status = await ended(
            connection, b"GetWorkflows", request, message=messages.append, opened=fields.update, fields=(given,)
        )
    assert status == (0, "")
    assert [pb.GetWorkflowsResponse.FromString(each).stop_workflow.workflow_id for each in messages] == ["0", "1", "2"]
    assert fields["tinkedge-token"] == "next"
    assert (service.received[0]["agent"], len(service.received[0]["authorization"])) == ("m-1", 307)


async def test_calls_end_with_the_status_of_the_server_and_more_than_its_window_is_sent_as_it_opens():
    service = Service()
    async with connected(service) as (connection, _, _):
        calls = [ended(connection, b"PublishEvent", event("x" * 20_000)) for _ in range(40)]
        assert await asyncio.gather(*calls) == [(0, "")] * 40
        assert service.events == 40
        assert await ended(connection, b"PublishEvent", event("here")) == (0, "")
        assert await ended(connection, b"PublishEvent", event("gone")) == (5, "no such workflow")
        assert (await ended(connection, b"NoSuchMethod", b""))[0] == 12


async def test_calls_under_way_end_when_the_server_goes():
    async with connected(Service()) as (connection, owner, server):
        await owner.is_connected.wait()
        await server.stop(None)
        await owner.is_lost.wait()
        assert (await ended(connection, b"PublishEvent", event("here")))[0] == UNAVAILABLE


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        """Nothing is there."""

    def data_bytes(self) -> int:
        """Bytes in DATA frames."""
        at, count = self.written.index(b"SM\r\n\r\n") + 6, 0
        while at < len(self.written):
            size = int.from_bytes(self.written[at : at + 3], "big")
            count += size if self.written[at + 3] == 0 else 0
            at += 9 + size
        return count


async def test_no_more_is_sent_than_the_server_has_room_for():
    wire, connection = Wire(), GrpcConnection("h:1", Owner().connected, Owner().lost)
    connection.connection_made(wire)
    for _ in range(5):
        connection.call(METHOD + b"PublishEvent", bytes(20_000), (), Call(lambda _status, _text: None))
    sent = wire.data_bytes()
    assert 40_000 < sent <= 65_535, "RFC 9113 section 6.9.2"
    connection.data_received(bytes.fromhex("000004080000000000") + (100_000).to_bytes(4, "big"))
    assert wire.data_bytes() == 5 * 20_005
    connection.close()
