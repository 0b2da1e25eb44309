"""From an OSIE's name to the URL and the checksum of its files; used by HTTP and TFTP."""

from __future__ import annotations

from typing import Any, cast

import pytest

from edge.machines import Located, NoArtifactError, OsieFiles

SUM = "ab" * 32


class Cache:
    def __init__(self) -> None:
        self.opened: list[tuple[str, str]] = []

    async def open(self, url: str, *, sha256: str = "") -> str:
        self.opened.append((url, sha256))
        return "artifact"


def osie(**annotations: str) -> dict[str, Any]:
    found = {f"tinkerbell.org/{name.replace('_', '-')}": value for name, value in annotations.items()}
    spec = {"kernelUrl": "http://h/vmlinuz", "initrdUrl": "http://h/initrd.gz"}
    return {"metadata": {"name": "lab", "namespace": "default", "annotations": found}, "spec": spec}


def files(obj: dict[str, Any] | None) -> OsieFiles:
    return OsieFiles(lambda *names: obj if names == ("default", "lab") else None, cast(Any, Cache()))


@pytest.mark.parametrize(
    ("annotations", "part", "expected"),
    [
        ({}, "kernel", Located("http://h/vmlinuz", "", "default/lab", "kernelUrl")),
        ({"kernel_sha256": SUM}, "kernel", Located("http://h/vmlinuz", SUM, "default/lab", "kernelUrl")),
        ({"kernel_sha256": SUM}, "initrd", Located("http://h/initrd.gz", "", "default/lab", "initrdUrl")),
        (
            {"initrd_sha256": f"{SUM.upper()}\n"},
            "initrd",
            Located("http://h/initrd.gz", SUM, "default/lab", "initrdUrl"),
        ),
    ],
)
def test_each_file_has_its_own_url_and_checksum(annotations: Any, part: str, expected: Located) -> None:
    assert files(osie(**annotations)).locate("default", "lab", part) == expected


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (None, "OSIE default/lab does not exist"),
        ({"metadata": {"name": "lab"}, "spec": {}}, "OSIE default/lab: spec.kernelUrl: Field required"),
        (
            osie(kernel_sha256="abc"),
            "OSIE default/lab: metadata.annotations[tinkerbell.org/kernel-sha256]: "
            "a SHA-256 checksum is 64 hexadecimal digits",
        ),
    ],
)
def test_osie_that_leads_nowhere_is_named_with_its_field(obj: Any, message: str) -> None:
    with pytest.raises(NoArtifactError) as caught:
        files(obj).locate("default", "lab", "kernel")
    assert str(caught.value) == message


def test_osie_of_another_namespace_is_another_osie() -> None:
    with pytest.raises(NoArtifactError):
        files(osie()).locate("other", "lab", "kernel")


async def test_file_is_opened_with_its_checksum() -> None:
    cache = Cache()
    found = OsieFiles(lambda *_: osie(initrd_sha256=SUM), cast(Any, cache))
    assert cast(Any, await found.open(found.locate("default", "lab", "initrd"))) == "artifact"
    assert cache.opened == [("http://h/initrd.gz", SUM)]
