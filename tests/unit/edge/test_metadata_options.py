"""The options of metadata: what an edge makes of them, and what its machines are told."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import click
import pytest

from edge.commands.serve import serving, settings
from edge.composition.machine_services import _boot_settings, metadata_settings
from edge.composition.settings import EDGE, Service, StackSettings
from tink.api.v1alpha2 import Raw
from tink.files.key_file import KeyFileError

MAC = "52:54:00:00:00:01"


async def read(_namespace: str, _name: str) -> Raw:
    return {}


def told(*words: str) -> StackSettings:
    """What the edge's command makes of `words`."""
    found: list[StackSettings] = []

    @click.command()
    @serving(Service.HTTP, Service.DHCP, "client", "process")
    def command(**options: Any) -> None:
        found.append(settings(EDGE, options))

    command.main(["--interface", "lo=127.0.0.1", *words], standalone_mode=False)
    return found[0]


def test_nobody_is_believed_and_no_token_handed_out_unless_told(tmp_path: Path) -> None:
    made = told("--data-dir", str(tmp_path))
    metadata = metadata_settings(made, read)
    assert (metadata.trusted.proxies, metadata.trusted.nat) == ((), ())
    assert (metadata.token_lifetime, metadata.imds_required) == (0, False)
    assert _boot_settings(made, metadata).metadata_token is None
    assert stat.S_IMODE((tmp_path / "metadata-token.key").stat().st_mode) == 0o600


def test_what_is_told_is_done(tmp_path: Path) -> None:
    words = [
        "--data-dir",
        str(tmp_path),
        "--trusted-proxies",
        "10.0.0.1, 2001:db8::/32,",
        "--metadata-nat",
        "10.9.0.0/16",
    ]
    words += ["--imds-tokens", "required", "--metadata-tokens", "--metadata-token-lifetime", "60"]
    made = told(*words)
    metadata = metadata_settings(made, read)
    assert [str(each) for each in metadata.trusted.proxies] == ["10.0.0.1/32", "2001:db8::/32"]
    assert [str(each) for each in metadata.trusted.nat] == ["10.9.0.0/16"]
    assert metadata.imds_required
    token = _boot_settings(made, metadata).metadata_token
    assert token is not None
    assert token(MAC).startswith("M1.525400000001.1")


@pytest.mark.parametrize("flag", ["--trusted-proxies", "--metadata-nat"])
@pytest.mark.parametrize("value", ["10.0.0.1/16", "10.0.0", "proxy.example", "10.0.0.0/33", "10.0.0.1 10.0.0.2", "*"])
def test_network_that_is_none_is_refused_at_the_start(flag: str, value: str) -> None:
    with pytest.raises(click.BadParameter, match="is no network such as"):
        told(flag, value)


def test_edges_that_share_a_key_file_do_not_make_it(tmp_path: Path) -> None:
    made = told("--data-dir", str(tmp_path), "--metadata-token-key", str(tmp_path / "shared"))
    with pytest.raises(KeyFileError, match="shared"):
        metadata_settings(made, read)
    (tmp_path / "shared").write_text("a" * 64)
    metadata_settings(made, read)
    assert [each.name for each in tmp_path.iterdir()] == ["shared"]


def test_fast_path_is_taken_unless_told() -> None:
    assert told().edge.fast_path
    assert not told("--no-fast-path").edge.fast_path
