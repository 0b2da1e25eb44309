"""The log lines of machines: how a datagram is parsed, identified, limited and stored."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.journey.events import MAX_DETAIL, Outcome, Step
from edge.journey.recorder import Journey
from edge.syslog import LogFiles, MachineLogs, SyslogServer, SyslogServerError
from edge.syslog import receiver as bounds
from edge.syslog.message import MAX_LINE, SEVERITIES, parse
from tests.waiting import until

# --- whose lines go where, and how many of them -----------------------------------------------------------------------

MAC, IP = "52:54:00:00:00:01", "10.0.0.5"
OTHER_MAC, OTHER_IP = "52:54:00:00:00:02", "10.0.0.6"


class Site:
    def __init__(self, directory: Path) -> None:
        self.seconds = 1000.0
        self.journey = Journey(time.time)
        self.files = LogFiles(directory / "machine-logs")
        macs = {IP: MAC, OTHER_IP: OTHER_MAC}
        self.logs = MachineLogs(
            lambda ip, _interface: macs.get(ip), self.journey.record, self.files, lambda: self.seconds, lambda: 0.0
        )

    def text(self, mac: str = MAC) -> str:
        return self.files.path(mac).read_text()

    def entries(self, mac: str = MAC) -> list[tuple[str, str]]:
        events = self.journey.events(mac)
        assert all((event.step, event.outcome) == (Step.LOG, Outcome.INFO) for event in events)
        return [(event.message, str(event.detail["lines"])) for event in events]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_lines_of_a_machine_are_in_its_file_and_on_its_journey(site: Site) -> None:
    for text in (b"<30>a: one", b"<27>a: two"):
        site.logs.take(text, IP)
    site.logs.take(b"<30>b: three", OTHER_IP)
    await site.logs.flush()
    assert site.text() == "1970-01-01T00:00:00.000Z info a: one\n1970-01-01T00:00:00.000Z err a: two\n"
    assert site.text(OTHER_MAC).endswith("info b: three\n")
    assert site.entries() == [("err a: two (2 lines)", "info a: one\nerr a: two")]
    assert stat.S_IMODE(site.files.path(MAC).stat().st_mode) == 0o600
    assert stat.S_IMODE(site.files.path(MAC).parent.stat().st_mode) == 0o700


async def test_lines_of_unregistered_hosts_are_dropped_with_one_log_line(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(500):
        site.logs.take(b"<30>a: forged", f"10.9.{number % 250}.1")
    await site.logs.flush()
    assert site.journey.macs() == []
    assert list(tmp_path.iterdir()) == []
    assert (caplog.text.count("they are dropped"), "forged" in caplog.text) == (1, False)
    assert site.logs.of_strangers == 500


async def test_flood_of_one_machine_does_not_affect_another(site: Site) -> None:
    for _ in range(5000):
        site.logs.take(b"<30>a: flood", IP)
    site.logs.take(b"<30>b: heard", OTHER_IP)
    await site.logs.flush()
    assert site.text().count("flood") == bounds.MAX_BURST_LINES
    assert "heard" in site.text(OTHER_MAC)
    ((message, lines),) = site.entries()
    assert message.endswith("(4000 more were too many, and are lost)")
    assert len(lines) <= MAX_DETAIL
    assert site.journey.events(MAC)[0].detail["omitted_lines"] == bounds.MAX_BURST_LINES - len(lines.splitlines())


async def test_machine_that_logs_for_an_hour_keeps_its_other_steps_on_the_journey(site: Site) -> None:
    site.journey.record(MAC, Step.AGENT, Outcome.OK, "connected")
    for _ in range(3600):
        site.logs.take(b"<30>a: progress", IP)
        site.seconds += 1
        await site.logs.flush()
    events = site.journey.events(MAC)
    assert events[0].message == "connected"
    assert 360 <= len(events) < 400
    assert sum(len(str(event.detail.get("lines", "")).split("progress")) - 1 for event in events) >= 3590


async def test_file_of_a_machine_is_limited_and_has_the_newest_lines(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, file_bytes=1000)
    for number in range(200):
        files.append({MAC: f"line {number:04}\n".encode() * 3})
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"52-54-00-00-00-01.log", "52-54-00-00-00-01.log.1"}
    assert max(sizes.values()) <= 1000
    assert files.path(MAC).read_text().endswith("line 0199\n")
    files.append({MAC: b"x" * 5000})
    assert files.path(MAC).stat().st_size == 1000


async def test_files_of_the_quietest_machines_are_deleted_also_after_a_restart(tmp_path: Path) -> None:
    for number in (1, 2, 3, 1):
        LogFiles(tmp_path, machines=2).append({f"52:54:00:00:00:0{number}": b"x\n"})
    assert {path.name[-6:-4] for path in tmp_path.iterdir()} == {"01", "03"}


async def test_symbolic_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "52-54-00-00-00-01.log").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        LogFiles(tmp_path).append({MAC: b"x\n"})
    assert (tmp_path / "secret").read_text() == "kept"


async def test_full_disk_loses_lines_and_not_the_journey(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "machine-logs").write_text("no directory")
    site = Site(tmp_path)
    for _ in range(3):
        site.logs.take(b"<30>a: one", IP)
        await site.logs.flush()
        site.seconds += 60
    assert len(site.entries()) == 3
    assert caplog.text.count("lines are not kept") == 1


@pytest.mark.parametrize("form", ["--rfc3164", "--rfc5424"])
async def test_message_of_logger_is_received_and_a_used_port_is_reported(form: str) -> None:
    received: list[tuple[bytes, str]] = []
    server = SyslogServer(lambda datagram, ip: received.append((datagram, ip)), host="127.0.0.1", port=0)
    await server.start()
    command = ("logger", "-n", "127.0.0.1", "-P", str(server.port), "-d", form, "-t", "image2disk", "-p", "daemon.err")
    try:
        await (await asyncio.create_subprocess_exec(*command, "written: 3 GiB")).wait()
        await until(lambda: received)
        ((datagram, ip),) = received
        assert (parse(datagram).line, ip) == ("err image2disk: written: 3 GiB", "127.0.0.1")
        with pytest.raises(SyslogServerError, match=r"another program has it.*without this service \(--syslog off\)"):
            await SyslogServer(lambda *_: None, host="127.0.0.1", port=server.port).start()
    finally:
        await server.stop()


async def test_step_with_lines_can_be_encoded_as_json(site: Site) -> None:
    site.logs.take("<30>a: \u202e\x1b[2J“quoted”".encode(), IP)
    await site.logs.flush()
    (event,) = site.journey.events(MAC)
    assert json.loads(json.dumps(dict(event.detail)))["lines"] == "info a: \\u202e\\x1b[2J“quoted”"


# --- what is read of a datagram ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datagram", "line"),
    [
        # RFC 3164 section 5.4, and RFC 5424 section 6.5
        (b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed", "crit su: 'su root' failed"),
        (b"<0>1990 Oct 22 10:52:01 TZ-6 scapegoat", "emerg 1990 Oct 22 10:52:01 TZ-6 scapegoat"),
        (b"Use the BFG!", "notice Use the BFG!"),
        (b"<34>1 2003-10-11T22:14:15.003Z m su - ID47 - \xef\xbb\xbf'su root' failed", "crit su: 'su root' failed"),
        (b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8 - - %% It's time", "notice myproc: %% It's time"),
        (
            b'<165>1 2003-10-11T22:14:15.003Z h evntslog - ID47 [e@1 iut="3" s="a \\"]\\" b"][x@2] An entry',
            "notice evntslog: An entry",
        ),
        (b"<165>1 - - - - - -", "notice "),
        # Docker's log driver, in each of its forms, and iPXE
        (b"<30>Nov 23 22:10:01 image2disk[812]: done", "info image2disk: done"),
        (b"<30> 2026-11-23T22:10:01Z hookos 3f1b2c[812]: done: 3", "info 3f1b2c: done: 3"),
        (b"<27>Nov  3 22:10:01 m1 dockerd: level=error", "err dockerd: level=error"),
        (b"<14>m1 ipxe: tinkedge: default/m1 boots", "info ipxe: tinkedge: default/m1 boots"),
        (b"<999>x: y", "notice <999>x: y"),
        (b"<1>1 - h a - - [broken x", "alert 1 - h a - - [broken x"),
        (b"", "notice "),
    ],
)  # fmt: skip
def test_message_is_parsed_to_severity_program_and_text(datagram: bytes, line: str) -> None:
    assert parse(datagram).line == line


def test_line_has_no_control_characters_or_line_breaks() -> None:
    message = parse(b"<30>x\x1bc: a\nm2 info b\r\x07\t\xff\xe2\x80\xae")
    assert message.text == "a\\nm2 info b\\r\\x07 \\xff\\u202e"
    assert message.program == "x\\x1bc"


@given(st.binary(max_size=400) | st.builds(lambda a, b: b"<13>1 " + a + b' [x@1 a="' + b, st.binary(), st.binary()))
def test_any_bytes_make_one_printable_line_of_limited_length(datagram: bytes) -> None:
    message = parse(datagram)
    assert message.severity in SEVERITIES
    assert message.line.isprintable()
    assert len(message.text) <= MAX_LINE


def test_long_lines_are_cut_and_parsed_in_linear_time() -> None:
    assert len(parse(b"<30>a: " + b"x" * 60_000).text) == MAX_LINE
    assert parse(b"<30>1 - - - - - " + b'[a b="' * 1400).severity == "info"
