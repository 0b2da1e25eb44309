"""Which lines of the annotation are SSH keys, and what EC2 calls them."""

from __future__ import annotations

import base64

import pytest

from hegel.sshkeys import names, ssh_keys


def key(kind: str, body: bytes = bytes(32)) -> str:
    blob = b"".join(len(part).to_bytes(4) + part for part in (kind.encode(), body))
    return f"{kind} {base64.b64encode(blob).decode()}"


ED25519 = key("ssh-ed25519")


@pytest.mark.parametrize(
    "line",
    [
        ED25519,
        f"{ED25519} ops@example",
        f"{ED25519} two words, ü",
        key("ssh-rsa", bytes(256)),
        key("ecdsa-sha2-nistp256", bytes(72)),
        key("sk-ssh-ed25519@openssh.com"),
        key("sk-ecdsa-sha2-nistp256@openssh.com"),
        f"no-pty,no-port-forwarding {ED25519}",
        f'from="10.0.0.0/8",command="echo \\"hi there\\"" {ED25519} ops',
    ],
)
def test_what_openssh_takes_is_a_key(line: str) -> None:
    assert ssh_keys(f"\t{line} \r\n") == ([line], [])


@pytest.mark.parametrize(
    "line",
    [
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI!!!",
        ED25519.replace("ssh-ed25519", "ssh-rsa"),
        ED25519[:-2],
        ED25519.split()[1],
        f"{ED25519}\x00",
        f"{ED25519} bell\x07",
        f"{ED25519} line\u2028break",
        f'from="open {ED25519}',
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
    ],
)
def test_what_is_no_key_is_named_by_its_line(line: str) -> None:
    assert ssh_keys(f"# comment\n\n{line}\n{ED25519}\n") == ([ED25519], [3])


def test_tabs_between_the_fields_do_not_make_the_value_unprintable() -> None:
    assert ssh_keys(ED25519.replace(" ", "\t") + "\tops") == ([f"{ED25519} ops"], [])


def test_key_given_twice_is_one_key() -> None:
    assert ssh_keys(f"{ED25519}\n{ED25519}") == ([ED25519], [])


def test_long_line_is_judged_in_bounded_time() -> None:
    assert ssh_keys('a"' * 100_000 + " x")[1] == [1]
    assert ssh_keys("a" * 200_000)[1] == [1]
    assert ssh_keys("a " * 100_000)[1] == [1]
    assert ssh_keys('"' + "\\" * 200_000)[1] == [1]


def test_names_are_unique_for_cloud_init_keeps_keys_by_name() -> None:
    lines = [f"{ED25519} ops", f"{ED25519} x ops", ED25519, f"{ED25519} key-1", f"{ED25519} a/b=", f"{ED25519} -x"]
    assert names(lines) == ["ops", "key-1", "key-2", "key-3", "key-4", "key-5"]
    assert names([f"{ED25519} key-1", f"{ED25519} ops", ED25519]) == ["key-0", "ops", "key-2"]
    assert names([f"{ED25519} key-1", ED25519]) == ["key-0", "key-1"]
