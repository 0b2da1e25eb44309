"""Papers and what they show: the operating systems of deploy/examples, and docs/operating.md with its alerts."""

from __future__ import annotations

import os
import re
from functools import cache
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from edge.artifacts.artifact import KINDS
from edge.cli import main
from edge.journey.events import Outcome, Step
from edge.neighbour.links import HostLink
from tink.api import crds
from tink.api.v1alpha2 import WorkflowState
from tink.kubeapi.schema.checker import Checker, compile_definition

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
EXAMPLES = DEPLOY / "examples"
DIRECTORIES = sorted(path.parent for path in EXAMPLES.glob("*/*.yaml") if path.stem == path.parent.name)
WITH_WORKFLOW = {"debian", "flatcar", "rocky", "ubuntu"}
INSTALLERS = {
    "autoinstall": "ds=nocloud;s=http://192.0.2.1:7080/nocloud/autoinstall-1/",
    "kickstart": "inst.ks=http://192.0.2.1:7080/latest/user-data",
    "preseed": "url=http://192.0.2.1:7080/latest/user-data",
    "talos": "talos.config=http://192.0.2.1:7080/latest/user-data",
}
PLACEHOLDERS = ("192.0.2.", "198.51.100.", "255.")
"""Beginnings of addresses for documentation (RFC 5737), and of netmasks."""
ADDRESS = re.compile(r"\b\d+\.\d+\.\d+\.\d+\b")

each_directory = pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)


@cache
def checkers() -> dict[str, Checker]:
    found = [each for definition in crds.generate() for each in compile_definition(definition).values()]
    return {each.kind: each for each in found if each.api_version == "tinkerbell.org/v1alpha2"}


def render(path: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["render", "-f", str(path), *words])


def objects(directory: Path) -> list[dict[str, Any]]:
    return [each for file in sorted(directory.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]


def only(directory: Path, kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects(directory) if each["kind"] == kind]
    return found


def test_every_directory_is_one_of_those_tested_here() -> None:
    assert {path.name for path in DIRECTORIES} == WITH_WORKFLOW | INSTALLERS.keys()


@each_directory
def test_api_takes_every_object_without_a_warning_and_objects_refer_to_each_other(directory: Path) -> None:
    for each in objects(directory):
        checked = checkers()[each["kind"]].check(each | {"metadata": {**each["metadata"], "namespace": "default"}})
        assert list(checked.problems) == [], f"{each['kind']} {each['metadata']['name']}"
    hardware = only(directory, "Hardware")
    assert hardware["spec"]["osie"]["name"] == only(directory, "OSIE")["metadata"]["name"]


@each_directory
def test_values_to_edit_stand_above_a_line_and_fit_no_real_machine(directory: Path) -> None:
    (file,) = directory.glob("*.yaml")
    above, mark, below = file.read_text().partition("# Nothing to edit below.\n")
    assert above.startswith(f"# {directory.name}: ")
    kinds = [each["kind"] for each in yaml.safe_load_all(above)], [each["kind"] for each in yaml.safe_load_all(below)]
    workflow = directory.name in WITH_WORKFLOW
    assert kinds == ((["Hardware", "Workflow"], ["Template", "OSIE"]) if workflow else (["Hardware"], ["OSIE"]))
    assert (mark != "", ADDRESS.search(below)) == (True, None)
    # For documentation: RFC 5737, and RFC 7042 section 2.1.1.
    assert {text for text in ADDRESS.findall(above) if not text.startswith(("192.0.2.", "255."))} == set()
    (mac,) = only(directory, "Hardware")["spec"]["networkInterfaces"]
    assert mac.startswith("00:00:5e:00:53:")


@pytest.mark.parametrize("name", sorted(WITH_WORKFLOW))
def test_a_workflow_renders_with_actions_that_there_are(name: str) -> None:
    result = render(EXAMPLES / name)
    assert result.exit_code == 0, result.output
    actions = yaml.safe_load(result.output)
    assert [action["image"].rsplit("/", 1)[1] for action in actions] == ["image2disk:1", "writefile:1", "reboot:1"]
    for action in actions:
        script = action["image"].rsplit("/", 1)[1].removesuffix(":1")
        sources = (DEPLOY / "actions" / script).glob("*.*")
        text = "".join(source.read_text() for source in sources if source.suffix in (".sh", ".py"))
        # Busybox' sh says nothing of a setting that is misspelt: it has no effect.
        assert [variable for variable in action.get("env", {}) if not re.search(rf"\b{variable}\b", text)] == []
    disk = only(EXAMPLES / name, "Hardware")["spec"]["storageDevices"][0]
    partition = only(EXAMPLES / name, "Workflow")["spec"]["templateParams"]["partition"]
    assert actions[0]["env"]["DEST_DISK"] == disk
    assert actions[1]["env"]["DEST_DISK"] == f"{disk}{partition}"
    assert "http://192.0.2.1:7080/" in actions[1]["env"]["CONTENTS"]

    if name == "flatcar":
        return
    # cloud-init is sent to its own metadata.
    seed = yaml.safe_load(actions[1]["env"]["CONTENTS"])
    seedfrom = f"http://192.0.2.1:7080/nocloud/{name}-1/"
    assert seed == {"datasource_list": ["NoCloud"], "datasource": {"NoCloud": {"seedfrom": seedfrom}}}


@pytest.mark.parametrize(("name", "parameter"), INSTALLERS.items())
def test_installer_gets_the_url_of_its_answers_and_needs_no_workflow(name: str, parameter: str) -> None:
    assert {each["kind"] for each in objects(EXAMPLES / name)} == {"Hardware", "OSIE"}
    assert parameter in only(EXAMPLES / name, "Hardware")["spec"]["kernelParams"]


@each_directory
def test_script_that_the_machine_netboots_is_shown(directory: Path) -> None:
    result = render(directory, "--netboot", "192.0.2.1")
    assert result.exit_code == 0, result.output
    hardware = only(directory, "Hardware")
    (mac,) = hardware["spec"]["networkInterfaces"]
    assert result.output.startswith(f"# {hardware['metadata']['name']}, {mac}: ")
    assert "#!ipxe" in result.output
    assert INSTALLERS.get(directory.name, "grpc_authority=192.0.2.1:42113") in result.output


def test_directory_without_a_workflow_is_refused_with_the_netboot_option() -> None:
    result = render(EXAMPLES / "kickstart")
    assert (result.exit_code, "--netboot IP, the address of the edge, shows" in result.output) == (1, True)


@pytest.mark.parametrize("name", sorted(WITH_WORKFLOW | {"autoinstall"}))
def test_user_data_is_yaml_that_cloud_init_knows_and_flatcars_json_of_ignition(name: str) -> None:
    text = only(EXAMPLES / name, "Hardware")["spec"]["instance"]["userdata"]
    read = yaml.safe_load(text)
    if name == "flatcar":
        assert read["ignition"] == {"version": "3.3.0"}
    else:
        assert (text.startswith("#cloud-config\n"), isinstance(read, dict)) == (True, True)


@each_directory
def test_docs_list_the_example_and_it_names_what_is_untested(directory: Path) -> None:
    assert f"[{directory.name}]({directory.name}/README.md)" in (EXAMPLES / "README.md").read_text()
    paper = (directory / "README.md").read_text()
    assert "## Untested" in paper
    assert [file.name for file in directory.glob("*.yaml") if f"`{file.name}`" not in paper] == []


# --- tinkedge examples --------------------------------------------------------------------------------------------


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIONxMgu8bXIznJnFp3kdixCs1zGqax1iHdcA3o1WRFfp"
MACHINE = (
    *("--mac", "52-54-00-AB-CD-EF", "--ip", "10.1.2.3", "--netmask", "255.255.0.0", "--gateway", "10.1.0.1"),
    *("--nameserver", "10.1.0.2", "--nameserver", "10.1.0.3", "--disk", "/dev/nvme0n1", "--name", "web7"),
    *("--edge", "10.1.0.9", "--http-port", "8080", "--data-dir", "/srv/tinkedge"),
)


def print_example(*words: str | Path, config: str | Path = os.devnull) -> Result:
    return CliRunner().invoke(main, ["examples", *map(str, words), *(["--config", str(config)] if words else [])])


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "id.pub"
    file.write_text(f"# mine\n{KEY} me@laptop\n")
    return file


def test_list_has_each_example_with_its_title() -> None:
    result = print_example()
    assert [line.split()[0] for line in result.stdout.splitlines()] == [path.name for path in DIRECTORIES]
    assert "Rocky Linux 9, installed by its netbooted installer (kickstart)" in result.stdout
    assert "tinkedge examples NAME" in result.stderr


@each_directory
def test_example_without_values_is_the_file_and_placeholders_are_listed(directory: Path) -> None:
    result = print_example(directory.name, "--edge", "192.0.2.1")
    assert result.stdout == (directory / f"{directory.name}.yaml").read_text()
    needed, _, defaults = result.stderr.partition("Right for this machine?\n")
    options = [line.split()[0] for line in needed.splitlines()[1:]]
    keys = [] if directory.name == "talos" else ["--ssh-key"]
    assert (options, result.exit_code) == (["--mac", "--ip", "--gateway", *keys], 0)
    assert [line.split()[0] for line in defaults.splitlines()] == ["--netmask", "--nameserver", "--disk"]


@each_directory
def test_values_of_a_machine_replace_every_placeholder(directory: Path, key_file: Path, tmp_path: Path) -> None:
    name = directory.name
    words = [*MACHINE, *([] if name == "talos" else ["--ssh-key", key_file])]
    result = print_example(name, *words)
    assert (result.exit_code, result.stderr) == (0, "")
    filled = result.stdout
    left = re.search(rf"192[.]0[.]2[.]|your-key|\\bsda|\\b{name}-1\\b|:7080|00:00:5e", filled)
    assert left is None
    found = {each["kind"]: each for each in yaml.safe_load_all(filled)}
    spec = found["Hardware"]["spec"]
    dhcp = {
        "ip": "10.1.2.3", "netmask": "255.255.0.0", "gateway": "10.1.0.1", "hostname": "web7",
        "nameservers": ["10.1.0.2", "10.1.0.3"],
    }  # fmt: skip
    assert spec["networkInterfaces"] == {"52:54:00:ab:cd:ef": {"dhcp": dhcp}}
    assert (found["Hardware"]["metadata"]["name"], spec["storageDevices"]) == ("web7", ["/dev/nvme0n1"])
    assert found["OSIE"]["spec"]["kernelUrl"].startswith("file:///srv/tinkedge/osie/")
    assert (f"{KEY} me@laptop" in filled) == (name != "talos")
    (tmp_path / "web7.yaml").write_text(filled)
    shown = render(tmp_path / "web7.yaml", *([] if name in WITH_WORKFLOW else ["--netboot", "10.1.0.9"]))
    assert shown.exit_code == 0, shown.output
    assert "10.1.0.9:8080" in shown.output


def test_kickstart_names_the_disk_as_anaconda_does_and_an_ipv6_address_has_brackets_in_urls() -> None:
    text = print_example("kickstart", "--disk", "/dev/vdb", "--edge", "fd00::9").stdout
    assert ("--only-use=vdb\n" in text, "--drives=vdb\n" in text) == (True, True)
    assert ("inst.ks=http://[fd00::9]:7080/latest" in text, "--netboot fd00::9 " in text) == (True, True)


@pytest.mark.parametrize(
    ("given", "url", "compressed"),
    [
        ("noble.img", "http://10.1.0.9:7080/files/noble.img", "false"),
        ("noble.raw.XZ", "http://10.1.0.9:7080/files/noble.raw.XZ", "true"),
        ("https://example.org/a.raw.gz?sig=1", "https://example.org/a.raw.gz?sig=1", "true"),
        ("https://example.org/ubuntu-1.qcow2", "https://example.org/ubuntu-1.qcow2", "false"),
    ],
)
def test_image_is_a_url_or_a_file_of_the_edge_and_its_name_says_how_it_is_compressed(
    given: str, url: str, compressed: str, tmp_path: Path
) -> None:
    words = [
        "--edge",
        "10.1.0.9",
        "--sha256",
        "A" * 64,
        "--partition",
        "3",
        "--name",
        "web7",
        "-o",
        tmp_path / "a.yaml",
    ]
    assert print_example("ubuntu", "--image", given, *words).exit_code == 0
    first, second, _ = yaml.safe_load(render(tmp_path / "a.yaml").stdout)
    expected = {"IMG_URL": url, "IMG_SHA256": "a" * 64, "DEST_DISK": "/dev/sda", "COMPRESSED": compressed}
    assert (first["env"], second["env"]["DEST_DISK"]) == (expected, "/dev/sda3")


def test_partition_of_a_given_image_is_listed() -> None:
    asked = print_example("rocky", "--image", "rocky.qcow2", "--edge", "10.1.0.9").stderr
    assert re.search(r'^  --partition +"4" +the number of a partition in it$', asked, re.MULTILINE)


def test_router_is_the_nameserver_unless_there_are_others() -> None:
    result = print_example("debian", "--ip", "10.1.2.3", "--gateway", "10.1.2.1", "--edge", "10.1.2.9")
    assert "        nameservers: [10.1.2.1]\n" in result.stdout
    assert "--nameserver" not in result.stderr


def test_address_without_its_router_is_printed_with_the_error_of_the_api() -> None:
    result = print_example("debian", "--ip", "10.1.2.3", "--edge", "10.1.2.9")
    assert (result.exit_code, "ip: 10.1.2.3" in result.stdout) == (0, True)
    assert "The API rejects it so far: Hardware debian-1: spec.networkInterfaces" in result.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nixos", "there is no example nixos; there are: autoinstall, debian, flatcar, kickstart, preseed, rocky,"),
        ("debian --mac 52:54:00", "'52:54:00' is no MAC address: write it like 52:54:00:12:34:56"),
        ("debian --mac 53:54:00:12:34:56", "is a multicast address, which no network card has"),
        ("debian --ip 10.1.2.300", "'10.1.2.300' is not an IPv4 address"),
        ("debian --netmask 255.0.255.0", "'255.0.255.0' is no netmask: write it like 255.255.255.0"),
        ("debian --netmask 0.0.0.255", "'0.0.0.255' is no netmask"),
        ("debian --ip 10.1.2.3 --gateway 10.2.0.1", "gateway: Invalid value: must be in the subnet of ip 10.1.2.3"),
        ("debian --edge 0.0.0.0", "is not the address of one host"),
        ("debian --disk sda", "'sda' is no disk: write the kernel's path, like /dev/sda or /dev/nvme0n1"),
        ("debian --disk /dev/../etc", "is no disk"),
        ("debian --name Web_7", "'Web_7' is no host name: use lower-case letters, digits and '-'"),
        ("debian --name 1e5", "'1e5' is a number or a word of YAML"),
        ("debian --name 10", "'10' is a number or a word of YAML: use another name"),
        ("debian --name null", "'null' is a number or a word of YAML"),
        ("debian --sha256 abc", "'abc' is no SHA-256: 64 hexadecimal digits"),
        ("debian --partition 0", "is not a number from 1 to 128"),
        ("debian --image ../x", "'../x' is neither the URL of an image nor the name of a file in DATA_DIR/files"),
        ("kickstart --image x.raw", "the example kickstart has no place for --image"),
        ("talos --ssh-key KEY", "the example talos has no place for --ssh-key"),
        ("debian --ssh-key PRIVATE", "is a private key: give the public one"),
        ("debian --ssh-key TWO", "one line like 'ssh-ed25519 AAAA... you@host' is needed, and the file has 2 lines"),
        ("debian --ssh-key OTHER", "is needed, and the file begins otherwise"),
        ("debian --ssh-key NONE", "NONE: No such file or directory"),
    ],
)  # fmt: skip
def test_invalid_value_is_refused(words: str, expected: str, tmp_path: Path) -> None:
    contents = {
        "KEY": f"{KEY}\n",
        "PRIVATE": "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n",
        "TWO": f"{KEY}\n{KEY}\n",
        "OTHER": "no key\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    given = [str(tmp_path / word) if word in {*contents, "NONE"} else word for word in words.split()]
    edge = [] if "--edge" in given else ["--edge", "10.1.0.9"]
    result = print_example(*given, *edge)
    assert (result.stdout, result.exit_code in (1, 2)) == ("", True)
    assert expected in " ".join(result.stderr.split())


def test_comment_of_a_key_can_not_end_the_text_around_it(tmp_path: Path) -> None:
    (tmp_path / "k").write_text(f'{KEY} me@home o\'brien "x" $(reboot) work\n')
    text = print_example("preseed", "--ssh-key", tmp_path / "k", "--edge", "10.1.0.9").stdout
    assert f'echo "{KEY} me@home work" >' in text


def test_edge_is_the_address_of_the_interface_in_the_settings(tmp_path: Path) -> None:
    settings = tmp_path / "tinkedge.yaml"
    settings.write_text("interface: lo\nhttp-port: 7181\ndata-dir: /srv/edge\n")
    result = print_example("debian", config=settings)
    assert "    edge: 127.0.0.1:7181\n" in result.stdout
    assert "file:///srv/edge/osie/tinkedge/kernel" in result.stdout
    assert "The edge is 127.0.0.1, this host's address on lo; --edge gives another." in result.stderr
    settings.write_text("public-ip: 10.1.0.9\n")
    assert "    edge: 10.1.0.9:7080\n" in print_example("debian", config=settings).stdout


def test_edge_of_several_interfaces_is_the_one_in_the_network_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"eth1": "10.1.0.9/16", "eth2": "10.2.0.9/16"}

    def look(name: str) -> HostLink:
        return HostLink(name, 1, True, True, 1500, (IPv4Interface(addresses[name]),))

    monkeypatch.setattr("edge.neighbour.links.look", look)
    words = ["debian", "--interface", "eth1", "--interface", "eth2"]
    for given, edge in (([], "10.1.0.9"), (["--ip", "10.2.3.4"], "10.2.0.9"), (["--ip", "10.3.3.4"], "10.1.0.9")):
        assert f"    edge: {edge}:7080\n" in print_example(*words, *given).stdout


def test_data_directory_is_a_uri_in_the_osie() -> None:
    text = print_example("talos", "--edge", "10.1.0.9", "--data-dir", "/var/lib/tinkedge/my data").stdout
    assert "kernelUrl: file:///var/lib/tinkedge/my%20data/osie/talos/kernel-amd64" in text
    assert "into /var/lib/tinkedge/my data/osie/talos on the edge" in text


def test_unknown_edge_address_stays_a_placeholder(tmp_path: Path) -> None:
    result = print_example("debian", "--interface", "none0")
    assert "    edge: 192.0.2.1:7080\n" in result.stdout
    assert re.search(r"^  --edge +192.0.2.1 +the edge$", result.stderr, re.MULTILINE)


def test_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    words = ["debian", "--edge", "10.1.0.9", "-o", file]
    first = print_example(*words)
    assert (first.stdout, file.read_text().startswith("# debian: ")) == ("", True)
    assert f"{file}: kubectl apply -f {file}" in first.stderr
    file.write_text("mine")
    refused = print_example(*words)
    assert (refused.exit_code, file.read_text()) == (1, "mine")
    assert "exists already, perhaps with your changes: --force replaces it" in refused.stderr
    assert print_example(*words, "--force").exit_code == 0
    assert file.read_text() != "mine"


# --- examples of the lab ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ipv6/machine", "ipv6/full", "dual-stack/hardware", "dual-stack/workflow"])
def test_machine_with_ipv6_alone_or_with_both_families_passes_the_checks_of_the_api(name: str) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    for each in yaml.safe_load_all(text):
        assert checkers()[each["kind"]].check(each | {"metadata": each["metadata"] | {"namespace": "d"}}).errors == []
        if name == "dual-stack/hardware":
            (interface,) = each["spec"]["networkInterfaces"].values()
            assert {"ip", "ipv6"} <= set(interface["dhcp"])
    assert name.startswith("dual-stack") or not ADDRESS.search(text)


def test_script_that_a_machine_netboots_over_ipv6_is_shown() -> None:
    result = render(EXAMPLES / "ipv6" / "machine.yaml", "--netboot", "fd31:77::1")
    assert result.exit_code == 0, result.output
    assert "grpc_authority=[fd31:77::1]:42113" in result.output
    refused = render(EXAMPLES, "--netboot", "fe80::1")
    assert "fe80::1 is not the address of one host" in refused.output


# --- the example with a BMC ---------------------------------------------------------------------------------------


def bmc_checkers() -> dict[str, Checker]:
    found = [compile_definition(definition)["v1alpha1"] for definition in crds.generate_bmc()]
    return checkers() | {each.kind: each for each in found}


def test_machine_with_a_bmc_passes_the_checks_of_the_api_and_its_objects_refer_to_each_other() -> None:
    (file,) = (EXAMPLES / "bmc").glob("*.yaml")
    found = {each["kind"]: each for each in yaml.safe_load_all(file.read_text())}
    assert list(found) == ["Secret", "Machine", "Hardware", "Workflow"]
    for kind, each in found.items():
        if kind != "Secret":
            checked = bmc_checkers()[kind].check(each | {"metadata": {**each["metadata"], "namespace": "default"}})
            assert list(checked.problems) == [], kind
    secret, machine, hardware, workflow = found.values()
    assert set(secret["stringData"]) == {"username", "password"}
    reference = machine["spec"]["connection"]["authSecretRef"]
    assert reference == {"name": secret["metadata"]["name"], "namespace": "default"}
    assert hardware["spec"]["bmcRef"]["name"] == machine["metadata"]["name"]
    assert workflow["spec"]["hardwareRef"]["name"] == hardware["metadata"]["name"]
    assert workflow["spec"]["bootOptions"] == {"toggleAllowNetboot": True, "bootMode": "netboot"}
    for kind, name in (
        ("Template", workflow["spec"]["templateRef"]["name"]),
        ("OSIE", hardware["spec"]["osie"]["name"]),
    ):
        assert only(EXAMPLES / "debian", kind)["metadata"]["name"] == name
    assert {text for text in ADDRESS.findall(file.read_text()) if not text.startswith(PLACEHOLDERS)} == set()
    (mac,) = hardware["spec"]["networkInterfaces"]
    assert mac.startswith("00:00:5e:00:53:")


def test_workflow_of_a_machine_with_a_bmc_renders_with_the_template_of_debian(tmp_path: Path) -> None:
    for kind in ("Template", "OSIE"):
        (tmp_path / f"{kind}.yaml").write_text(yaml.safe_dump(only(EXAMPLES / "debian", kind)))
    (tmp_path / "machine.yaml").write_text((EXAMPLES / "bmc" / "machine.yaml").read_text())
    result = render(tmp_path)
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.output)[0]["env"]["DEST_DISK"] == "/dev/sda"


def test_boot_options_in_the_readme_of_a_machine_with_a_bmc_are_accepted() -> None:
    paper = (EXAMPLES / "bmc" / "README.md").read_text()
    variants = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", paper, re.DOTALL)]
    assert [each["bootOptions"]["bootMode"] for each in variants] == ["isoboot", "customboot"]
    workflow = next(each for each in objects(EXAMPLES / "bmc") if each["kind"] == "Workflow")
    for variant in variants:
        changed = workflow | {"spec": workflow["spec"] | variant}
        changed["metadata"] = {**workflow["metadata"], "namespace": "default"}
        assert list(checkers()["Workflow"].check(changed).problems) == []


# --- docs/operating.md and the alerts go together, and with the names and values that there are -----------------------


ROOT = Path(__file__).resolve().parents[3]
PAPER = (ROOT / "docs" / "operating.md").read_text()
_PREFIXES = ("tinkedge_", "apiserver_", "controller_runtime_", "grpc_", "leader_", "rest_client_", "workqueue_")


def metrics() -> dict[str, tuple[str, set[str]]]:
    """Type and labels by name, from the tables; that these are true, `tests/unit/run/test_graph.py` sees."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (gauge|counter|histogram) \| (.*?) \|", PAPER, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_use_existing_metrics_and_labels() -> None:
    known = metrics()
    for rule in rules():
        expression = re.sub(r"\b(without|by) \([^)]*\)", "", rule["expr"])
        asked = re.findall(r"\b([a-z]+_[a-z_]+)\b(?:\{([^}]*)\})?", expression)
        found = {
            re.sub("_(bucket|sum|count)$", "", name): matchers for name, matchers in asked if name.startswith(_PREFIXES)
        }
        assert found or "up{" in rule["expr"], rule["alert"]
        for name, matchers in found.items():
            assert name in known, f"{rule['alert']}: there is no {name}"
            assert set(re.findall(r"(\w+)!?=", matchers)) <= known[name][1] | {"job"}, rule["alert"]
    asked = " ".join(rule["expr"] for rule in rules())
    kinds = {kind for found in re.findall(r'kind=~"([\w|]+)"', asked) for kind in found.split("|")}
    assert kinds <= {kind.replace(" ", "_") for kind in KINDS}
    assert set(re.findall(r'step="(\w+)"', asked)) <= {step.value for step in Step}
    states = set(map(str, WorkflowState))
    assert set(re.findall(r'outcome="(\w+)"', asked)) <= {outcome.value for outcome in Outcome} | states
    assert set(re.findall(r'to="(\w+)"', asked)) <= states


def test_docs_have_a_remedy_for_every_alert() -> None:
    (table,) = re.findall(r"^\| alert \| look at \|\n(.*?)\n\n", PAPER, re.MULTILINE | re.DOTALL)
    expected = [name for row in table.splitlines()[1:] for name in re.findall(r"\bTinkedge\w+", row.split("|")[1])]
    assert expected == [rule["alert"] for rule in rules() if rule["alert"] in expected]
    assert set(expected) == {rule["alert"] for rule in rules()}


def test_labels_are_all_listed() -> None:
    (kinds,) = re.findall(r"^\| `tinkedge_artifact_failures_total` .*: (.*) \|$", PAPER, re.MULTILINE)
    assert kinds.replace("`", "").split(", ") == [kind.replace(" ", "_") for kind in KINDS]
    (steps,) = re.findall(r"`step`: ([\w, ]+);", PAPER)
    assert set(steps.split(", ")) == {step.value for step in Step}
