"""wipe: settings, and what an NVMe controller is asked. On disks: tests/interop/containers/test_example_actions.py."""

import ctypes
import fcntl
import struct
from types import SimpleNamespace

import pytest
from image2disk.errors import ActionError
from wipe.__main__ import MAX_DISKS, Settings, read
from wipe.modes import nvme_format

FORMAT, IDENTIFY, NSID = 0x80, 0x06, 5


@pytest.fixture
def nvme(monkeypatch):
    """A namespace in its LBA format 0x23, whose controller answers a format with `status`."""
    disk = SimpleNamespace(name="/dev/nvme0n1", fd=7, status=0, asked=[])

    def ioctl(fd, request, command=None):
        if command is None:
            return NSID
        opcode, nsid, address, cdw10 = struct.unpack("=B3xI16xQ8xI28x", command)
        disk.asked.append((opcode, nsid, cdw10))
        if opcode == IDENTIFY:
            ctypes.memset(address + 26, 0x23, 1)  # FLBAS
            return 0
        return disk.status

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    return disk


def test_nvme_format_erases_user_data_and_keeps_the_lba_format(nvme):
    nvme_format(nvme)
    lower, upper, erase = 0x3, 1 << 12, 1 << 9
    assert nvme.asked == [(IDENTIFY, NSID, 0), (FORMAT, NSID, lower | upper | erase)]


@pytest.mark.parametrize(
    ("status", "words"),
    [(0x4001, "no such command"), (0x15, "locked by a password"), (0x410A, "refuses the format"), (0x2FF, "0x2ff")],
)
def test_nvme_format_that_is_refused_fails_with_the_answer_of_the_controller(nvme, status, words):
    nvme.status = status
    with pytest.raises(ActionError, match=words) as caught:
        nvme_format(nvme)
    assert caught.value.reason == "NotSupported"


def test_disks_are_named_one_by_one():
    assert read({"DEST_DISK": " /dev/sda,\n/dev/nvme0n1 "}) == Settings(("/dev/sda", "/dev/nvme0n1"), "metadata")
    for names in ("", " , ", "all", "/dev/sda sdb", "/etc/passwd", "/dev/sda " * (MAX_DISKS + 1)):
        with pytest.raises(ActionError, match="DEST_DISK"):
            read({"DEST_DISK": names})
