"""The TFTP server: which file for whom (`files`), and how it gets there (`server`, `session`, `transfer`)."""

from edge.tftp.files import MAX_FAILURES, BootFiles
from edge.tftp.packets import Opcode
from edge.tftp.server import BEGUN_SECONDS, MAX_BEGUN, TFTP_PORT, TftpServer, TftpServerError, server_sockets

__all__ = [
    "BEGUN_SECONDS",
    "MAX_BEGUN",
    "MAX_FAILURES",
    "TFTP_PORT",
    "BootFiles",
    "Opcode",
    "TftpServer",
    "TftpServerError",
    "server_sockets",
]
