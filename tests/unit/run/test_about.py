"""The description of the process, its host and the OSIEs on the operators' page."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from edge.page import Api, Osie
from edge.run.about import ThisEdge, osies_of


def test_process_is_described_with_its_host_its_disk_and_its_api(tmp_path: Path) -> None:
    api = Api("embedded", "https://127.0.0.1:6443")
    about = ThisEdge(tmp_path, lambda: api, started=1000.0).about()
    assert about.version
    assert (about.host, about.started, about.data_dir) == (socket.gethostname(), 1000.0, str(tmp_path))
    assert about.total_bytes == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert about.free_bytes is not None
    assert about.synchronised in (True, False, None)
    assert about.api is api


def test_data_directory_that_is_gone_has_no_known_space(tmp_path: Path) -> None:
    about = ThisEdge(tmp_path / "gone").about()
    assert (about.free_bytes, about.total_bytes, about.is_nearly_full) == (None, None, False)


def test_files_of_an_osie_are_its_kernel_its_initrd_and_its_uki_whatever_else_is_written_there() -> None:
    annotations = {"tinkerbell.org/uki-url": " http://x/uki.efi "}
    whole = {"metadata": {"name": "hook", "namespace": "d", "annotations": annotations},
             "spec": {"kernelUrl": "http://x/k", "initrdUrl": "http://x/i"}}  # fmt: skip
    assert list(osies_of([whole, {"metadata": None, "spec": 7}])) == [
        Osie("d/hook", (("kernel", "http://x/k"), ("initrd", "http://x/i"), ("UKI", "http://x/uki.efi"))),
        Osie("/", ()),
    ]
