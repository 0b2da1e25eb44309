"""`tinkedge convert`: what it reads, what it writes, and what it exits with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from click.testing import CliRunner, Result

from edge.cli import main

CORPORA = Path(__file__).parent / "corpora" / "hardware"
MACHINE = """\
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {name: %s}
spec:
  interfaces: [{dhcp: {mac: "52:54:00:00:00:%02d"}, netboot: {allowPXE: true}}]
"""


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("TINKEDGE_", "KUBECONFIG"))]:
        monkeypatch.delenv(name)


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(main, ["convert", *map(str, arguments)], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def names(result: Result) -> list[str]:
    return [obj["metadata"]["name"] for obj in yaml.safe_load_all(result.stdout)]


def test_machine_without_loss_exits_with_0() -> None:
    result = run("-f", "-", stdin=MACHINE % ("a", 1))
    assert (result.exit_code, names(result)) == (0, ["a"])
    assert result.stderr == "1 object written; 0 errors, 0 fields dropped, 0 changed\n"


def test_loss_exits_with_2_unless_it_is_allowed_and_is_reported_in_both_cases() -> None:
    lossy = MACHINE % ("a", 1) + "  tinkVersion: 3\n"
    for arguments, code in ((("-f", "-"), 2), (("-f", "-", "--allow-loss"), 0)):
        result = run(*arguments, stdin=lossy)
        assert (result.exit_code, names(result)) == (code, ["a"])
        assert "spec.tinkVersion" in result.stderr


def test_broken_document_exits_with_1_and_the_rest_is_written() -> None:
    result = run("-f", "-", "--allow-loss", stdin=MACHINE % ("a", 1) + "---\na: [\n---\n" + MACHINE % ("b", 2))
    assert (result.exit_code, names(result)) == (1, ["a", "b"])
    assert "(-, document 2)" in result.stderr


def test_directory_is_read_with_all_below_it_in_order_and_links_in_circles_do_no_harm(tmp_path: Path) -> None:
    for index, path in enumerate(("b.yaml", "a/z.yml", "a/b/y.json", "notes.txt", ".git/x.yaml", "a.yaml")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        machine = MACHINE % (Path(path).stem, index)
        (tmp_path / path).write_text(json.dumps(yaml.safe_load(machine)) if path.endswith("json") else machine)
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "a/self.yaml").symlink_to(tmp_path / "a/self.yaml")
    (tmp_path / "again.yaml").symlink_to(tmp_path / "b.yaml")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    result = run("-f", tmp_path, "-f", tmp_path / "b.yaml")
    assert names(result) == ["a", "b", "z", "y"]
    assert result.exit_code == 1
    assert result.stderr.count("can't be read") == 2


def test_pipe_in_a_directory_does_not_hang_the_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    result = run("-f", tmp_path)
    assert result.exit_code == 1
    assert "no regular file" in result.stderr


def test_missing_file_is_named() -> None:
    result = run("-f", "/nowhere/x.yaml")
    assert result.exit_code == 1
    assert "/nowhere/x.yaml" in result.stderr
    assert "No such file" in " ".join(result.stderr.split())


def test_json_output_is_one_list() -> None:
    result = run("-f", "-", "-o", "json", stdin=MACHINE % ("a", 1) + "---\n" + MACHINE % ("b", 2))
    assert [item["metadata"]["name"] for item in json.loads(result.stdout)["items"]] == ["a", "b"]


def test_output_directory_gets_a_file_an_object_and_converting_it_again_changes_nothing(tmp_path: Path) -> None:
    run("-f", CORPORA, "--output-dir", tmp_path / "one")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 7
    again = run("-f", tmp_path / "one", "--output-dir", tmp_path / "two")
    assert again.exit_code == 0, again.stderr
    assert [(path.name, path.read_text()) for path in sorted((tmp_path / "two").iterdir())] == [
        (name, (tmp_path / "one" / name).read_text()) for name in files
    ]


def test_stream_converted_again_is_the_same_byte_for_byte() -> None:
    once = run("-f", CORPORA)
    twice = run("-f", "-", stdin=once.stdout)
    assert once.stdout == twice.stdout
    assert twice.exit_code == 0


def test_dash_is_standard_output_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert names(run("-f", "-", "--out", "-", stdin=MACHINE % ("a", 1))) == ["a"]
    report = run("-f", "-", "--out", "x", "--report", "json", "--report-file", "-", stdin=MACHINE % ("a", 1))
    assert json.loads(report.stdout) == {"objects": 1, "findings": []}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_file_may_be_converted_in_place(tmp_path: Path) -> None:
    path = tmp_path / "rack.yaml"
    path.write_text(MACHINE % ("a", 1))
    result = run("-f", path, "--out", path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "v1alpha2" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    result = run("-f", "-", "--out", tmp_path / "nowhere" / "x", "--report", "json", stdin=MACHINE % ("a", 1))
    assert result.exit_code == 1
    report = json.loads(result.stderr)
    (finding,) = report["findings"]
    assert (report["objects"], finding["file"]) == (0, str(tmp_path / "nowhere" / "x"))
    assert finding["reason"] == "not written: No such file or directory"


def test_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`--report-file /dev/stderr`, or /dev/null, by root, of all people."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("-f", "-", "--out", pipe, stdin=MACHINE % ("a", 1)).exit_code == 0
        assert b"name: a" in os.read(reader, 10_000)
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("rack.yaml")
    for _ in range(2):
        assert run("-f", "-", "--out", tmp_path / "link", stdin=MACHINE % ("a", 1)).exit_code == 0
        assert (tmp_path / "link").is_symlink()
        assert "name: a" in (tmp_path / "rack.yaml").read_text()


def test_file_in_the_way_costs_one_object_and_the_others_are_written(tmp_path: Path) -> None:
    (tmp_path / "hardware-default-a.yaml").mkdir()
    text = MACHINE % ("a", 1) + "---\n" + MACHINE % ("b", 2)
    result = run("-f", "-", "--output-dir", tmp_path, stdin=text)
    assert (result.exit_code, (tmp_path / "hardware-default-b.yaml").is_file()) == (1, True)
    assert "hardware-default-a.yaml" in result.stderr
    assert "1 of 2 objects written; 1 error" in result.stderr


def test_full_disk_is_told_of_in_the_report() -> None:
    result = run("-f", "-", "--out", "/dev/full", stdin=MACHINE % ("a", 1))
    assert result.exit_code == 1
    assert "not written: No space left on device" in " ".join(result.stderr.split())
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("to_file", [True, False])
def test_report_as_json_has_every_finding(tmp_path: Path, to_file: bool) -> None:
    path = tmp_path / "report.json"
    arguments: list[Any] = ["-f", CORPORA / "eksa.yaml", "--report", "json"]
    result = run(*arguments, *(["--report-file", path] if to_file else []))
    found = orjson.loads(path.read_bytes() if to_file else result.stderr)
    assert len(found["findings"]) == 4
    assert {each["file"] for each in found["findings"]} == {str(CORPORA / "eksa.yaml")}
    assert {each["name"] for each in found["findings"]} == {"eksa-a01"}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-f", "-", "--from-cluster", "-A"],
        ["--from-cluster"],
        ["--from-cluster", "-A", "-n", "x"],
        ["-f", "-", "--out", "x", "--output-dir", "y"],
        ["-f", "-", "--out", "x", "--apply"],
        ["-f", "-", "--force-conflicts"],
        ["-f", "-", "--report-file", "-"],
        ["-f", "-", "--report-file", "-", "--out", "-"],
        ["-f", "-", "--to", "v1"],
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_help_stays_fast_and_shows_the_command() -> None:
    result = run("--help")
    assert "--from-cluster" in result.stdout
    assert "convert" in CliRunner().invoke(main, ["--help"]).stdout


def test_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for arguments in (["--from-cluster", "-A"], ["-f", CORPORA / "eksa.yaml", "--apply"]):
        result = run(*arguments, "--kubeconfig", tmp_path / "none")
        assert result.exit_code == 1
        assert "no such file" in result.stderr
