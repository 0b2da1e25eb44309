"""The TFTP server: which file for whom (`files`), and how it gets there (`server`, `session`, `transfer`)."""

from edge.tftp.files import BootFiles
from edge.tftp.packets import Opcode
from edge.tftp.server import TFTP_PORT, TftpServer, TftpServerError

__all__ = ["TFTP_PORT", "BootFiles", "Opcode", "TftpServer", "TftpServerError"]
