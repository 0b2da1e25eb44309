"""Building programs of Go modules takes minutes: whoever waits sees how far it is."""

import pytest

from tests.programs import build

GO = """#!/bin/sh
echo golang.org/x/text/unicode >&2
echo helm.sh/helm/v4/pkg/chart >&2
sleep 0.5
while [ "$1" != -o ]; do shift; done
{end}
"""


@pytest.fixture
def go(tmp_path, monkeypatch):
    program = tmp_path / "go"
    monkeypatch.setattr(build, "installed", lambda _name: str(program))
    monkeypatch.setattr(build, "default_cache", lambda: tmp_path)
    monkeypatch.setattr(build, "SHOW_SECONDS", 0.1)
    program.touch(0o755)
    return program


def test_build_says_how_far_it_is(go, capsys):
    go.write_text(GO.format(end='echo made >"$2"'))
    assert build.built("helm")["helm"].read_text() == "made\n"
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("programs: building helm 4.")
    assert len(said) > 2
    assert said[-1].endswith("s: 2, helm.sh/helm/v4/pkg/chart")


def test_build_that_fails_says_why(go):
    go.write_text(GO.format(end="echo cannot find module >&2; exit 1"))
    with pytest.raises(build.ProgramError, match="cannot find module"):
        build.built("helm")
    assert not build.place("helm").exists()


def test_build_without_an_end_is_ended(go, monkeypatch):
    monkeypatch.setattr(build, "BUILD_SECONDS", 0.2)
    go.write_text(GO.format(end="exec sleep 60"))
    with pytest.raises(build.ProgramError, match=r"not done within 0\.2 s"):
        build.built("helm")
