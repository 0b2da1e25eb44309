"""The environment of an action must be the same with each runtime: runc, crun, Docker and Podman.

A Workflow does not know the runtime of its machine's OSIE. The tests run as root, with Debian's packages, and images
built with umoci from a real registry.

Known differences, which are not in the table: Engines set HOSTNAME, fill a new named volume from the image, have a
bridge network, and let an action replace a failure file. runc and crun join namespaces by path. Podman makes a
directory in place of a missing socket.
"""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.interop.containers.conftest import shell
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.model import ActionError, Reason, RenderedAction, RunResult
from tink.agent.output import line_sink

RUNTIMES = ["runc", "crun", "docker", "podman"]


@pytest.fixture(params=RUNTIMES)
def which(request):
    return request.param


@dataclass(frozen=True)
class Row:
    """An action of the shell `script` (or none), and how it ends: an exit code, or with ActionError of that reason.

    In `script` and `fields`, HOST is a directory of the machine. `message`: what the ActionError names, or all of the
    result's. `says`: the lines of output. `leaves`: what is in HOST then.
    """

    what: str
    script: str = ""
    image: str = "plain"
    fields: dict[str, Any] = field(default_factory=dict)
    ends: int | Reason = 0
    reason: str = ""
    message: str = ""
    says: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    stop: bool = False
    but: str = ""
    """The runtime of which it is not true."""


def volumes(*texts):
    return {"volumes": texts}


# A stopped shell prints nothing about its background processes.
DAEMON = "sh -c 'exec 2>/dev/null; sleep 100; true' HOST & echo bye"
NO_FILES = (
    "cd /tinkerbell; umount failure-* 2>/dev/null; rm failure-*; "
    "mkfifo failure-reason; mknod failure-message c 1 5; exit 2"
)
OF_THE_IMAGE = [
    # what runs
    Row("what the image runs", image="entry", says=("entry image's",)),
    Row("other arguments", image="entry", fields={"args": ("", "two words")}, says=("entry  two words",)),
    Row("a program, without the image's arguments", image="entry", fields={"cmd": "/bin/echo"}),
    Row("a program and arguments", image="entry", fields={"cmd": "/bin/echo", "args": ("x",)}, says=("x",)),
    Row("a program of PATH", fields={"cmd": "echo", "args": ("$A",)}, says=("$A",)),
    Row("no program at all", ends=Reason.INVALID_ACTION),
    Row("a program that is not there", fields={"cmd": "/no/such"}, ends=Reason.RUNTIME_ERROR, message="/no/such"),
    Row("a file that is no program", fields={"cmd": "/etc/passwd"}, ends=Reason.RUNTIME_ERROR),
    # as whom, with what
    Row("a user that the image does not have", "id", image="ghost", ends=Reason.INVALID_ACTION),
    Row(
        "environment",
        'echo "$A,$B,$C,$D"; env | grep -c ^D=$',
        fields={"env": {"A": "action", "C": "x=y\nz ü", "D": ""}},
        says=("action,b,x=y", "z ü,", "1"),
    ),
    Row(
        "the image's user, groups, home, directory and volumes",
        "id -u; for group in $(id -G); do echo $group; done | sort; echo $HOME; pwd; ls -d /data/deep",
        image="writer",
        says=("1234", "1235", "6", "/home/writer", "/not/there", "/data/deep"),
    ),
]
TABLE = [
    # how it ends
    Row(
        "a reason and a message of any user",
        "echo Why >/tinkerbell/failure-reason; echo because >/tinkerbell/failure-message; exit 5",
        image="writer",
        ends=5,
        reason="Why",
        message="because",
    ),
    Row("a failure without a word", "echo said; exit 3", ends=3, reason="NonZeroExit", message="exit code 3 | said"),
    Row("a signal", "sh -c 'kill -9 $$'; exit $?", ends=137, message="exit code 137 (SIGKILL) | Killed"),
    Row("failure files that are something else", NO_FILES, ends=2, reason="NonZeroExit", message="exit code 2"),
    Row(
        "no failure files", "umount /tinkerbell/* 2>/dev/null; rm -r /tinkerbell; exit 2", ends=2, message="exit code 2"
    ),
    Row(
        "too long a reason",
        "yes x | head -c 9999999 >/tinkerbell/failure-reason; exit 2",
        ends=2,
        reason="InvalidReason",
    ),
    # volumes
    Row("a missing directory", "touch /m/x", fields=volumes("HOST/a/b:/m"), leaves=("a", "a/b", "a/b/x")),
    Row(
        "a socket that is not there", "true", fields=volumes("HOST/x.sock:/x"), ends=Reason.INVALID_ACTION, but="podman"
    ),
    Row(
        "a volume inside of another, named before it",
        "touch /m/n/x",
        fields=volumes("HOST/b:/m/n", "HOST/a:/m"),
        leaves=("a", "a/n", "b", "b/x"),
    ),
    Row("two volumes at one place", "true", fields=volumes("HOST:/m", "HOST:/m/"), ends=Reason.INVALID_ACTION),
    Row("a volume not to be written", "touch /m/x 2>&- || echo no", fields=volumes("HOST:/m/:ro,"), says=("no",)),
    Row("options that exclude each other", "true", fields=volumes("HOST:/m:ro,rw"), ends=Reason.INVALID_ACTION),
    Row("a relative path", "true", fields=volumes("./a:/m"), ends=Reason.INVALID_ACTION),
    Row("propagation of a name", "true", fields=volumes("name:/m:rshared"), ends=Reason.INVALID_ACTION),
    # the machine
    Row("no network", "wc -l </proc/net/dev", fields={"network_namespace": "none"}, says=("3",)),
    Row(
        "the machine's namespaces by path",
        "test $$ -ne 1 && test $(wc -l </proc/net/dev) -gt 3",
        fields={"network_namespace": "/proc/1/ns/net", "pid_namespace": "/proc/1/ns/pid"},
    ),
    Row("a resolver of its own", "cd /etc; echo x >resolv.conf; echo y >hosts; cat resolv.conf hosts", says=("x", "y")),
    # what goes in and out, and what is left
    Row("nothing to read", "cat; echo $?", says=("0",)),
    Row("output of every kind", r"printf 'a\rb\r\n\n\377\n'; printf last", says=("a", "b", "�", "last")),
    Row("a child left behind", DAEMON, says=("bye",)),
    Row("a child left behind among the machine's", f"setsid {DAEMON}", fields={"pid_namespace": "host"}, says=("bye",)),
    Row(
        "a stop that it and its children ignore",
        "trap '' TERM; while :; do touch /m/up; sleep 0.05; done & wait; sleep 60",
        fields={**volumes("HOST:/m"), "pid_namespace": "host"},
        ends=137,
        stop=True,
    ),
]


CASES = [(which, row) for which in RUNTIMES for row in TABLE if which != row.but]
# Podman gets what is of the image in the same request as Docker.
CASES += [(which, row) for which in RUNTIMES[:3] for row in OF_THE_IMAGE]


@pytest.mark.parametrize(("which", "row"), CASES, ids=[f"{which}-{row.what}" for which, row in CASES])
async def test_action_meets_the_same_on_all(machine, tmp_path, row):
    def here(value):
        return value.replace("HOST", str(tmp_path))

    given = dict(row.fields)
    given["volumes"] = tuple(map(here, given.get("volumes", ())))
    if row.script:
        given |= {"cmd": "/bin/sh", "args": ("-c", here(row.script))}
    action = RenderedAction(id="a", name="act", image=f"{machine.registry}/alike/{row.image}:1", **given)
    reported, stop = [], asyncio.Event()
    await machine.runtime.pull(action.image, stop)
    line_sink.set(reported.append)
    running = asyncio.create_task(machine.runtime.run(action, stop))
    if isinstance(row.ends, Reason):
        with pytest.raises(ActionError, match=row.message or None) as caught:
            await running
        assert caught.value.reason == row.ends
        return
    if row.stop:
        await until((tmp_path / "up").exists)
        assert processes_that_mount(tmp_path)
        stop.set()
    result = await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert result.exit_code == row.ends
    assert row.reason in ("", result.reason)
    assert row.message in ("", result.message)
    assert len(result.message) <= 2048
    assert tuple(reported) == row.says or not row.says
    if "HOST" in row.script:
        await until(lambda: not processes_with(tmp_path), lambda: processes_with(tmp_path))
    if row.stop:
        # A process that is left would write the file again.
        await until(lambda: not processes_that_mount(tmp_path), lambda: processes_that_mount(tmp_path))
        (tmp_path / "up").unlink()
    assert tuple(sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))) == row.leaves


def processes_that_mount(path):
    """Return the command lines of the processes in whose mount namespace `path` is a volume."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(path) in (process / "mountinfo").read_text():
                found.append((process / "cmdline").read_bytes())
    return found


def processes_with(path):
    """The command lines of this machine's processes that name `path`."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(command.read_bytes())
    return [line for line in found if str(path).encode() in line and b"sleep 100" in line]


WITH_RUNC = pytest.param("runc", marks=pytest.mark.smoke)


@pytest.mark.parametrize("which", [WITH_RUNC, *RUNTIMES[1:]])
async def test_action_has_the_machine_its_network_name_devices_and_capabilities(machine, which):
    # The device cgroup lets everything through: partitions of a disk that is just written need that.
    script = (
        "echo $0,$1; echo $$; hostname; readlink /proc/self/ns/net; grep CapEff /proc/self/status; "
        "mknod /tmp/zero c 1 5 && head -c 2 /tmp/zero | od -An -tx1; test -c /dev/null && test -b /dev/loop0; echo $?"
    )
    reported = []
    line_sink.set(reported.append)
    action = shell(machine.registry, script, args=("-c", script, "x", "y z"))
    assert await machine.action(action) == RunResult(0)
    reported = reported[-7:]  # before that, the image was pulled
    mask = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    known = 0x3FFFFFFFFF if which == "docker" else -1  # Docker 20.10 does not know the three newest
    assert int(reported.pop(4).split()[1], 16) & known == int(mask.split()[1], 16) & known
    assert reported == ["x,y z", "1", socket.gethostname(), str(Path("/proc/self/ns/net").readlink()), "00 00", "0"]


@pytest.mark.parametrize("which", [WITH_RUNC, *RUNTIMES[1:]])
async def test_named_volume_carries_files_from_action_to_action_and_nothing_else_does(machine):
    script = "echo data >/mnt/file; echo x >/bin/new && rm /bin/ls"
    assert (await machine.sh(script, volumes=("scratch:/mnt",))).succeeded
    script = "test ! -e /bin/new && test -x /bin/ls && test $(cat /mnt/deep/file) = data"
    assert (await machine.sh(script, volumes=("scratch:/mnt/deep:ro",))).succeeded
    result = await machine.sh(
        "echo x >/mnt/file; echo Why >/tinkerbell/failure-reason; exit 7", volumes=("scratch:/mnt:ro",)
    )
    assert (result.exit_code, result.reason) == (7, "Why")
    assert "Read-only file system" in result.message


async def test_flood_of_output_loses_nothing_of_the_end(machine):
    line = "0123456789" * 50
    result = await machine.sh(rf"yes {line} | head -n 12000; printf 'end\377'; exit 3")
    assert result.message.endswith(f"{line} | end\ufffd"), "six megabytes are more than an engine keeps"
    assert (result.exit_code, result.reason) == (3, Reason.NON_ZERO_EXIT)


async def test_action_that_is_stopped_may_tidy_up_and_one_that_has_not_begun_never_does(machine, tmp_path):
    patient = machine.another(grace_seconds=60.0)  # on a busy machine, too, it ends by itself and is not killed
    await patient.prepare()
    script = "trap 'touch /host/tidy; exit 0' TERM; touch /host/up; while :; do sleep 0.05; done"
    action = shell(machine.registry, script, volumes=(f"{tmp_path}:/host",))
    await patient.pull(action.image, asyncio.Event())
    stop = asyncio.Event()
    running = asyncio.create_task(patient.run(action, stop))
    await until((tmp_path / "up").exists)
    stop.set()
    assert (await asyncio.wait_for(running, PATIENCE_SECONDS)).exit_code == 0
    assert (tmp_path / "tidy").exists()

    (tmp_path / "up").unlink()
    assert not (await asyncio.wait_for(patient.run(action, stop), PATIENCE_SECONDS)).succeeded
    assert not machine.engine or not (tmp_path / "up").exists()
