"""Where the libraries of diagnosis come from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edge.diagnose import extra
from edge.diagnose.extra import MissingExtraError


def test_debians_own_package_will_do_where_the_environment_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extra, "DEBIAN", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(extra, "_PACKAGES", {"selfmade": "python3-selfmade"})
    with pytest.raises(MissingExtraError, match=r"selfmade is not installed: apt install python3-selfmade, or pip"):
        extra._load("selfmade.all")
    assert str(tmp_path) not in sys.path
    (tmp_path / "selfmade").mkdir()
    (tmp_path / "selfmade" / "__init__.py").touch()
    (tmp_path / "selfmade" / "all.py").write_text("HERE = 1\n")
    assert extra._load("selfmade.all").HERE == 1
    assert sys.path[-1] == str(tmp_path), "behind all that is tinkedge's own"


def test_what_debian_has_no_package_of_is_not_said_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tftpy", None)
    with pytest.raises(MissingExtraError, match=r"tftpy is not installed: pip install 'tinkedge\[diagnose\]'"):
        extra.tftpy()
