"""A TFTP port that several processes share: each has a socket of it, and a part of what strangers may cost."""

import socket

import pytest

from edge.tftp import TftpServer, TftpServerError, server_sockets
from edge.tftp.server import UNPROVEN_FIRST_BLOCKS
from edge.tftp.source import TftpFile

HOST = "127.0.0.1"


def open_file(_request):
    return TftpFile(b"x" * 2000, "file", None)


def nothing(*_about, **_detail):
    """Records nothing."""


def test_a_port_of_somebody_else_is_not_shared():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((HOST, 0))
        with pytest.raises(TftpServerError, match="another program has it"):
            server_sockets(HOST, other.getsockname()[1], None, 2)


def test_every_client_gets_one_of_the_sockets():
    sockets = server_sockets(HOST, 0, None, 2)
    address = sockets[0].getsockname()
    assert sockets[1].getsockname() == address
    clients = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(64)]
    for client in clients:
        client.sendto(b"x", address)
    heard = [_taken(sock) for sock in sockets]
    assert sum(heard) == 64
    assert min(heard) > 0
    for sock in (*sockets, *clients):
        sock.close()


@pytest.mark.parametrize("processes", [1, 4])
async def test_what_may_be_sent_to_one_who_has_proven_nothing_is_shared_out(processes):
    (sock,) = server_sockets(HOST, 0, None)
    server = TftpServer(open_file, nothing, host=HOST, sock=sock, processes=processes)
    await server.start()
    allowance = server._first_blocks[False]
    allowed = sum(allowance.take("10.0.0.1", 0.0) for _ in range(100))
    assert allowed == UNPROVEN_FIRST_BLOCKS // processes
    await server.stop()


async def test_who_hears_no_more_requests_ends_what_is_under_way():
    import asyncio

    (sock,) = server_sockets(HOST, 0, None)
    server = TftpServer(open_file, nothing, host=HOST, sock=sock)
    await server.start()
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        client.sendto(b"\0\1file\0octet\0", (HOST, server.port))
        received = 0
        async with asyncio.timeout(10):
            block, peer = await loop.sock_recvfrom(client, 2048)
            server.retire()
            while True:
                received += len(block) - 4
                client.sendto(b"\0\4" + block[2:4], peer)
                if len(block) < 516:
                    break
                block, peer = await loop.sock_recvfrom(client, 2048)
    assert received == 2000
    await server.stop()


def _taken(sock):
    count = 0
    while True:
        try:
            sock.recv(100)
        except BlockingIOError:
            return count
        count += 1
