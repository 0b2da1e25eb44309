"""The TFTP server: which file for whom (`files`), and how it gets there (`server`, `session`, `transfer`)."""

from edge.tftp.files import BootFiles
from edge.tftp.packets import Opcode
from edge.tftp.server import TftpServer, TftpServerError

__all__ = ["BootFiles", "Opcode", "TftpServer", "TftpServerError"]
