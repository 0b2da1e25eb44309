"""Which cluster a kubeconfig leads to: by its authority, or by its URL where anybody may have that."""

from __future__ import annotations

from pathlib import Path

from tests.interop.authority import Authority
from tink.kube.identity import cluster_ids


def test_cluster_is_known_by_its_authority_whatever_its_address(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, other = Authority(tmp_path), Authority(tmp_path / "other")
    known = cluster_ids("https://a:6443", str(one.file))
    assert known == cluster_ids("https://b", str(one.file))
    assert not known & cluster_ids("https://a:6443", str(other.file))
    both = tmp_path / "both.crt"
    both.write_bytes(one.file.read_bytes() + other.file.read_bytes())
    assert known & cluster_ids("https://a:6443", str(both)), "an authority that is being replaced"


def test_cluster_without_an_authority_of_its_own_is_known_by_its_url(tmp_path: Path) -> None:
    known = cluster_ids("https://api.example.org/", None)
    assert known == cluster_ids("https://api.example.org", None) != cluster_ids("https://other.example.org", None)
    broken = tmp_path / "ca.crt"
    broken.write_text("none")
    assert cluster_ids("https://api.example.org", str(broken)) == known
    assert cluster_ids("https://api.example.org", str(tmp_path / "absent")) == known
