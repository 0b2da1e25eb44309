"""One table of what an action meets, and the runtimes that must agree on it: runc and crun alone, and Docker.

A Workflow does not know which of them its machine's OSIE has. Runs as root, with Debian's runc, crun and dockerd, and
images built with umoci from a real registry.

Known to differ, and not in the table. Docker gives HOSTNAME to the environment, begins a named volume with what the
image has at its place, has a bridge network, and lets an action put another file in the place of a failure file. runc
and crun join namespaces by path.
"""

import asyncio
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.interop.containers.engines import run
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.images.registry import Registries
from tink.agent.images.store import ImageStore
from tink.agent.model import Action, ActionError, Reason, RunResult
from tink.agent.output.lines import line_sink
from tink.agent.runtimes.docker.runtime import DockerRuntime
from tink.agent.runtimes.oci.runc import ContainerRuntime

PASSWD = "root:x:0:0::/:/bin/sh\nwriter:x:1234:1235::/home/writer:/bin/sh\n"
GROUP = "root:x:0:\nwriter:x:1235:\ndisk:x:6:writer\n"
IMAGES = {
    "plain": (),
    "entry": ("--config.entrypoint", "/bin/echo", "--config.entrypoint", "entry", "--config.cmd", "image's"),
    "writer": ("--config.user", "writer", "--config.workingdir", "/not/there", "--config.volume", "/data/deep"),
    "ghost": ("--config.user", "ghost"),
}


@pytest.fixture(scope="module")
def registry(actions, docker_registry, tmp_path_factory):
    """host:port of a registry with the images, each busybox with a configuration of its own."""
    directory = tmp_path_factory.mktemp("images")
    layout = directory / "inspect"
    shutil.copytree(actions / "inspect", layout)
    (directory / "etc").mkdir()
    (directory / "etc" / "passwd").write_text(PASSWD)
    (directory / "etc" / "group").write_text(GROUP)
    run("umoci", "insert", "--image", f"{layout}:1", directory / "etc", "/etc")
    cleared = (
        "--clear",
        "config.entrypoint",
        "--clear",
        "config.cmd",
        "--config.env",
        "A=image",
        "--config.env",
        "B=b",
    )
    run("umoci", "config", "--image", f"{layout}:1", "--tag", "plain", *cleared)
    for name, settings in IMAGES.items():
        if settings:
            run("umoci", "config", "--image", f"{layout}:plain", "--tag", name, *settings)
        run(
            "skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
            f"oci:{layout}:{name}", f"docker://{docker_registry}/alike/{name}:1",
        )  # fmt: skip
    return docker_registry


@pytest.fixture(scope="module")
def prepared():
    """The runtimes, by name, once they are ready."""
    return {}


@pytest.fixture(scope="module")
def crun(tmp_path_factory):
    """crun where it does not see a mixture of cgroup versions, which it refuses."""
    wrapper = tmp_path_factory.mktemp("crun") / "crun"
    wrapper.write_text(
        "#!/bin/sh\nexec unshare -m sh -c '"
        'grep -q " /sys/fs/cgroup/unified " /proc/mounts && umount /sys/fs/cgroup/unified; exec crun "$@"\' sh "$@"\n'
    )
    wrapper.chmod(0o755)
    return str(wrapper)


@pytest.fixture(params=["runc", "crun", "docker", "podman"])
async def runtime(request, docker, podman, crun, prepared, tmp_path_factory):
    if request.param not in prepared:
        if request.param in ("docker", "podman"):
            engine = docker if request.param == "docker" else podman
            made = DockerRuntime(str(engine.socket), "52:54:00:00:00:01", Registries(), grace_seconds=0.3)
        else:
            state = tmp_path_factory.mktemp("state")
            store = ImageStore(state, Registries())
            program = crun if request.param == "crun" else shutil.which("runc")
            made = ContainerRuntime(program, state, store, grace_seconds=0.3)
        await made.prepare()
        prepared[request.param] = made
    return prepared[request.param]


@dataclass(frozen=True)
class Row:
    """An action of the shell `script` (or none), and how it ends: an exit code, or with ActionError of that reason.

    In `script` and `fields`, HOST is a directory of the machine. `says`: the lines of output. `leaves`: what is in HOST
    then.
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


def volumes(*texts):
    return {"volumes": texts}


# Whoever is stopped says nothing of what it had started.
DAEMON = "sh -c 'exec 2>/dev/null; sleep 100; true' HOST & echo bye"
NO_FILES = (
    "cd /tinkerbell; umount failure-* 2>/dev/null; rm failure-*; "
    "mkfifo failure-reason; mknod failure-message c 1 5; exit 2"
)
TABLE = [
    # what runs
    Row("what the image runs", image="entry", says=("entry image's",)),
    Row("other arguments", image="entry", fields={"args": ("", "two words")}, says=("entry  two words",)),
    Row("a program, without the image's arguments", image="entry", fields={"cmd": "/bin/echo"}),
    Row("a program and arguments", image="entry", fields={"cmd": "/bin/echo", "args": ("x",)}, says=("x",)),
    Row("a program of PATH", fields={"cmd": "echo", "args": ("$A",)}, says=("$A",)),
    Row("no program at all", ends=Reason.INVALID_ACTION),
    Row("a program that is not there", fields={"cmd": "/no/such"}, ends=Reason.RUNTIME_ERROR),
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
    Row("a socket that is not there", "true", fields=volumes("HOST/x.sock:/x"), ends=Reason.INVALID_ACTION),
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


@pytest.mark.parametrize("row", TABLE, ids=[row.what for row in TABLE])
async def test_action_meets_the_same_on_all(runtime, registry, tmp_path, row):
    def here(value):
        return value.replace("HOST", str(tmp_path))

    given = dict(row.fields)
    given["volumes"] = tuple(map(here, given.get("volumes", ())))
    if row.script:
        given |= {"cmd": "/bin/sh", "args": ("-c", here(row.script))}
    action = Action(id="a", name="act", image=f"{registry}/alike/{row.image}:1", **given)
    end = await ended(runtime, action, tmp_path / "up" if row.stop else None)
    if isinstance(row.ends, Reason):
        assert isinstance(end.how, ActionError)
        assert end.how.reason == row.ends
        return
    assert isinstance(end.how, RunResult)
    assert end.how.exit_code == row.ends
    assert row.reason in ("", end.how.reason)
    assert row.message in ("", end.how.message)
    assert tuple(end.said) == row.says or not row.says
    if "HOST" in row.script:
        await until(lambda: not processes_with(tmp_path), lambda: processes_with(tmp_path))
    if row.stop:
        (tmp_path / "up").unlink()
        await asyncio.sleep(0.3)
    assert tuple(sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))) == row.leaves


def processes_with(path):
    """The command lines of this machine's processes that name `path`."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(command.read_bytes())
    return [line for line in found if str(path).encode() in line and b"sleep 100" in line]


@dataclass(frozen=True)
class Ended:
    how: RunResult | ActionError
    said: list[str]


async def ended(runtime, action, up):
    """How `action` ends; it is told to stop when `up` is there."""
    said, stop = [], asyncio.Event()
    await runtime.pull(action.image, stop)
    line_sink.set(said.append)
    running = asyncio.create_task(runtime.run(action, stop))
    while up is not None and not up.exists():
        await asyncio.sleep(0.02)
    if up is not None:
        stop.set()
    try:
        return Ended(await asyncio.wait_for(running, PATIENCE_SECONDS), said)
    except ActionError as error:
        return Ended(error, said)
