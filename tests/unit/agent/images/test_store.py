"""How much room an image has, where the images are in memory."""

from tink.agent.images import store
from tink.agent.images.store import available_memory, file_system_of

MOUNTINFO = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /run rw,nosuid - tmpfs tmpfs rw,size=400k
31 22 0:2 / /x rw - rootfs none rw
"""


def test_file_system_is_found_by_its_device():
    assert file_system_of(26, MOUNTINFO) == "tmpfs"
    assert file_system_of((254 << 8) | 1, MOUNTINFO) == "ext4"
    assert file_system_of(2, MOUNTINFO) == "rootfs"
    assert file_system_of(99, MOUNTINFO) == file_system_of(99, "nonsense\n\n") == ""


def test_memory_that_is_left_is_read_in_bytes():
    assert available_memory("MemTotal: 900 kB\nMemAvailable:     512 kB\n") == 512 * 1024
    assert available_memory("") == 1 << 30


def test_tmpfs_that_is_larger_than_the_memory_has_only_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "available_memory", lambda meminfo: 20 * 1024 * 1024)
    monkeypatch.setattr(store, "file_system_of", lambda device, mountinfo: "ext4")
    assert store._room(tmp_path) > 20 * 1024 * 1024
    for kind in ("tmpfs", "ramfs", "rootfs"):
        monkeypatch.setattr(store, "file_system_of", lambda device, mountinfo, kind=kind: kind)
        assert store._room(tmp_path) == 4 * 1024 * 1024, "without the reserve for everything else"
