"""The container's description: what an action gets, from its own fields and the image's."""

from pathlib import Path

import pytest

from tink.agent.model import Action, ActionError
from tink.agent.runtimes.failure import FailureFiles
from tink.agent.runtimes.host import Host
from tink.agent.runtimes.oci.bundle import DEFAULT_PATH, container_config, image_volumes


@pytest.fixture
def image_rootfs(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nwriter:x:12:34::/:/bin/sh\nbroken\nodd:x:-1:x::/:\n"
    )
    (tmp_path / "etc/group").write_text("root:x:0:\nwriter:x:34:\ndisk:x:6:root,writer\n")
    return tmp_path


@pytest.fixture
def describe(image_rootfs):
    def describe(settings=None, host=None, **fields):
        return container_config(
            Action(**{"id": "a", "name": "act", "image": "img", "cmd": "/prog", **fields}),
            {"config": settings},
            rootfs=Path("/state/run/c/rootfs"),
            image_rootfs=image_rootfs,
            cgroup="c",
            volume_dir=Path("/state/volumes"),
            failure_files=FailureFiles(Path("/state/run/c")),
            shared_files={"/etc/resolv.conf": Path("/state/run/c/resolv.conf")},
            host=host or Host((1 << 41) - 1),
        )

    return describe


@pytest.mark.parametrize(
    ("entrypoint", "command", "cmd", "args", "expected"),
    [
        (["/ep", "-x"], ["c1"], "", (), ["/ep", "-x", "c1"]),
        (["/ep"], ["c1"], "", ("a1", "a2"), ["/ep", "a1", "a2"]),
        (["/ep"], ["c1"], "/cmd", (), ["/cmd"]),
        (["/ep"], ["c1"], "/cmd with blank", ("a1",), ["/cmd with blank", "a1"]),
        (None, ["c1", "c2"], "", (), ["c1", "c2"]),
        (None, ["c1"], "", ("a1",), ["a1"]),
    ],
)
def test_program_is_chosen_as_docker_does(describe, entrypoint, command, cmd, args, expected):
    config = describe({"Entrypoint": entrypoint, "Cmd": command}, cmd=cmd, args=args)
    assert config["process"]["args"] == expected


def test_neither_image_nor_action_names_a_program(describe):
    with pytest.raises(ActionError, match="cmd") as caught:
        describe(None, cmd="")
    assert caught.value.reason == "InvalidAction"


def test_actions_environment_wins_over_the_images(describe):
    env = describe({"Env": ["A=image", "B=image=x", "C"]}, env={"A": "action", "D": "new"})["process"]["env"]
    assert env == [f"PATH={DEFAULT_PATH}", "A=action", "B=image=x", "C=", "D=new"]


def test_images_path_wins_over_the_default(describe):
    assert describe({"Env": ["PATH=/bin"]})["process"]["env"] == ["PATH=/bin"]


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("", (0, 0, [0, 6])),
        ("root", (0, 0, [0, 6])),
        ("writer", (12, 34, [34, 6])),
        ("12", (12, 34, [34, 6])),
        ("99", (99, 0, [0])),
        ("99:98", (99, 98, [98])),
        ("writer:disk", (12, 6, [6])),
    ],
)
def test_user_is_looked_up_in_the_image(describe, user, expected):
    user = describe({"User": user})["process"]["user"]
    assert (user["uid"], user["gid"], user["additionalGids"]) == expected


@pytest.mark.parametrize("user", ["nobody-here", "writer:no-group", "odd", "broken", "²"])
def test_unknown_user_is_named(describe, user):
    with pytest.raises(ActionError, match=user.split(":")[-1]):
        describe({"User": user})


def test_passwd_that_links_out_of_the_image_is_not_read_from_the_machine(describe, image_rootfs):
    (image_rootfs / "etc/passwd").unlink()
    (image_rootfs / "etc/passwd").symlink_to("/etc/passwd")
    with pytest.raises(ActionError, match="daemon"):
        describe({"User": "daemon"})


def test_only_the_capabilities_that_the_agent_has_are_given(describe):
    capabilities = describe(host=Host(0b101))["process"]["capabilities"]
    assert capabilities["effective"] == ["CAP_CHOWN", "CAP_DAC_READ_SEARCH"]
    assert "ambient" not in capabilities


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ({}, {"mount", "ipc", "pid"}),
        ({"network_namespace": "host", "pid_namespace": "host"}, {"mount", "ipc"}),
        ({"network_namespace": "/proc/1/ns/net", "pid_namespace": "/proc/1/ns/pid"}, {"mount", "ipc"}),
        ({"network_namespace": "none"}, {"mount", "ipc", "pid", "network"}),
    ],
)
def test_namespaces(describe, fields, types):
    assert {namespace["type"] for namespace in describe(**fields)["linux"]["namespaces"]} == types


def test_namespace_is_joined_by_path(describe):
    namespaces = describe(network_namespace="/run/netns/x", pid_namespace="/proc/7/ns/pid")["linux"]["namespaces"]
    assert {"type": "network", "path": "/run/netns/x"} in namespaces
    assert {"type": "pid", "path": "/proc/7/ns/pid"} in namespaces


@pytest.mark.parametrize("field", ["network_namespace", "pid_namespace"])
def test_unknown_namespace_is_refused_and_not_taken_for_the_hosts(describe, field):
    with pytest.raises(ActionError, match="bridge"):
        describe(**{field: "bridge"})


@pytest.mark.parametrize(("network", "has"), [("", True), ("host", True), ("/proc/1/ns/net", True), ("none", False)])
def test_copy_of_the_resolver_goes_with_the_machines_network_only(describe, network, has):
    mounts = {mount["destination"]: mount for mount in describe(network_namespace=network)["mounts"]}
    assert ("/etc/resolv.conf" in mounts) == has
    if has:
        assert mounts["/etc/resolv.conf"]["source"] == "/state/run/c/resolv.conf"
        assert "ro" not in mounts["/etc/resolv.conf"]["options"], "an engine lets an action write its own, too"


def destinations(config):
    return [mount["destination"] for mount in config["mounts"]]


def test_volumes_are_mounted_and_hide_neither_devices_nor_failure_files(describe):
    config = describe(volumes=("/host/dir:/a:ro", "cache:/b", "/x:/tinkerbell"))
    mounts = {mount["destination"]: mount for mount in config["mounts"]}
    assert mounts["/a"] == {"destination": "/a", "type": "none", "source": "/host/dir", "options": ["rbind", "ro"]}
    assert mounts["/b"]["source"] == "/state/volumes/cache"
    assert destinations(config)[-2:] == ["/tinkerbell/failure-reason", "/tinkerbell/failure-message"]


def test_volume_inside_of_another_is_mounted_after_it_in_whatever_order_they_are_merged(describe):
    volumes = ("/b:/m/n/o", "/c:/other", "/a:/m", "cache:/m/n")
    places = [place for place in destinations(describe(volumes=volumes)) if place.startswith("/m")]
    assert places == ["/m", "/m/n", "/m/n/o"]


def test_directories_that_the_image_calls_volumes_are_named():
    assert image_volumes({"config": {"Volumes": {"/data": {}, "var/lib": {}}}}) == ["/data", "/var/lib"]
    assert image_volumes({}) == image_volumes({"config": {"Volumes": None}}) == []


@pytest.mark.parametrize("settings", ["text", [1], {"Env": "x", "Cmd": {"a": 1}, "User": None, "WorkingDir": None}])
def test_image_configuration_of_the_wrong_shape_is_survived(describe, settings):
    assert describe(settings)["process"]["cwd"] == "/"
