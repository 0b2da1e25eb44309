"""Where the agent's settings come from: the kernel command line that the edge's script wrote, and flags."""

from pathlib import Path

import pytest

from tink.agent.model import AgentSettingsError
from tink.agent.settings import AgentSettings, from_kernel_command_line, kernel_arguments
from tink.net.proxies import Proxies

CMDLINE = (
    "vmlinuz ip=dhcp console=ttyS0 worker_id=52:54:00:AA:bb:01 grpc_authority=172.31.0.1:42113 tinkerbell_tls=false "
    "insecure_registries=172.31.0.1:5000,10.0.0.0/8 docker_registry=172.31.0.1:5000 registry_username=admin "
    "registry_password=s3cret panic=5\n"
)


PIN = "http://10.0.0.1:7080/agent/ca.pem#sha256=" + "0a" * 32
REGISTRIES = "http://10.0.0.1:7080/agent/registries.json#sha256=" + "0b" * 32


def test_agent_learns_everything_from_the_kernel_command_line():
    words = (
        f"tinkerbell_registry_ca={REGISTRIES} tinkedge_sign=http://10.0.0.1:7080/sign/up tinkerbell_edges=10.0.0.2:80"
    )
    settings = from_kernel_command_line(f"{CMDLINE} tinkerbell_tls_ca={PIN} tinkerbell_token=v1.a.b {words}")
    assert settings == AgentSettings(
        agent_id="52:54:00:aa:bb:01",
        server="172.31.0.1:42113",
        insecure_registries=("172.31.0.1:5000", "10.0.0.0/8"),
        docker_registry="172.31.0.1:5000",
        registry_username="admin",
        registry_password="s3cret",
        tls_ca_url=PIN,
        registry_ca_url=REGISTRIES,
        plain_registries=("10.0.0.1:7080", "10.0.0.2:80"),
        edges=("10.0.0.2:80",),
        token="v1.a.b",
        in_osie=True,
    )
    assert not from_kernel_command_line("quiet", agent_id="a", server="s").in_osie, "started by hand"
    assert from_kernel_command_line(f"{CMDLINE} tinkerbell_tls=true").tls
    assert not [secret for secret in ("v1.a.b", "s3cret") if secret in repr(settings)]


@pytest.mark.parametrize(
    ("words", "environment", "proxies"),
    [
        (
            "HTTP_PROXY=http://a:s3cret@p:1 HTTPS_PROXY=p:2 NO_PROXY=10.0.0.0/8,.x",
            {},
            ("http://a:s3cret@p:1", "p:2", "10.0.0.0/8,.x"),
        ),
        ("HTTP_PROXY=upper http_proxy=lower", {"HTTPS_PROXY": "host"}, ("lower", "", "")),
        ("", {"HTTPS_PROXY": "host", "no_proxy": "x"}, ("", "host", "x")),
    ],
)
def test_proxies_are_those_of_the_kernel_command_line_else_of_the_environment(words, environment, proxies):
    settings = from_kernel_command_line(f"{CMDLINE} {words}", environment)
    assert settings.proxies == Proxies(*proxies)
    assert "s3cret" not in repr(settings)


def test_flags_win_over_the_kernel_command_line():
    settings = from_kernel_command_line(
        f"{CMDLINE} tinkerbell_tls=true tinkerbell_tls_ca={PIN} tinkerbell_token=t",
        agent_id="node-1",
        server="tink.example",
        runtime="process",
        state_dir=Path("/var/tinkedge"),
        insecure_registries=(),
        registry_password="other",
        tls=False,
        after_workflow=("/bin/true",),
        token="u",
        tls_roots=Path("/roots"),
    )
    assert (settings.token, settings.tls_ca_url, settings.tls_roots) == ("u", "", Path("/roots"))
    assert (settings.agent_id, settings.server, settings.runtime) == ("node-1", "tink.example:42113", "process")
    assert (settings.insecure_registries, settings.registry_password, settings.tls) == ((), "other", False)
    assert (settings.state_dir, settings.after_workflow) == (Path("/var/tinkedge"), ("/bin/true",))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('a=1 quiet b="x y" a=2 c=k=v', {"a": "2", "quiet": "", "b": "x y", "c": "k=v"}),
        ('quiet "worker_id=52:54:00:00:00:01" a=1', {"quiet": "", "worker_id": "52:54:00:00:00:01", "a": "1"}),
        ('"a=x y" "b=" c="" d=1', {"a": "x y", "b": "", "c": "", "d": "1"}),
        ('a="cut off', {"a": "cut", "off": ""}),
        ('"a=cut off', {"a": "cut off"}),
        ('password=p"w# a=1', {"password": 'p"w#', "a": "1"}),
    ],
)
def test_last_kernel_argument_wins_and_quotes_hold_blanks_as_the_kernel_reads_them(text, arguments):
    assert kernel_arguments(text) == arguments


@pytest.mark.parametrize(
    ("field", "given", "normal"),
    [
        ("agent_id", "52-54-00-AA-BB-01", "52:54:00:aa:bb:01"),
        ("agent_id", "52:54:00:AA:BB:01", "52:54:00:aa:bb:01"),
        ("agent_id", "Node-A", "Node-A"),
        ("server", "10.0.0.1", "10.0.0.1:42113"),
        ("server", "[fd00::1]", "[fd00::1]:42113"),
        ("server", "[fd00::1]:1", "[fd00::1]:1"),
        ("server", "h:65535", "h:65535"),
    ],
)
def test_mac_is_spelled_as_the_server_spells_it_and_a_server_has_a_port(field, given, normal):
    assert getattr(AgentSettings(**{"agent_id": "a", "server": "s", field: given}), field) == normal


@pytest.mark.parametrize(
    ("cmdline", "flags", "named"),
    [
        ("grpc_authority=s:1", {}, "worker_id="),
        ("worker_id=a", {}, "grpc_authority="),
        ("worker_id=a grpc_authority=http://s:1", {}, "http://s:1"),
        ("worker_id=a grpc_authority=s:0", {}, "s:0"),
        ("worker_id=a grpc_authority=fd00::1", {}, "brackets"),
        ("worker_id=a grpc_authority=s tinkerbell_tls=maybe", {}, "tinkerbell_tls"),
        ("worker_id=a grpc_authority=s", {"runtime": "lxc"}, "lxc"),
        ("worker_id=a grpc_authority=s registry_username=u", {}, "docker_registry"),
        ("worker_id=a grpc_authority=s", {"state_dir": Path("/a,b")}, "/a,b"),
        ("worker_id=a grpc_authority=s", {"state_dir": Path("rel")}, "rel"),
        (f"{CMDLINE} tinkerbell_servers=h:1", {}, "tinkerbell_servers: 'h:1' is not like"),
        (f"{CMDLINE} tinkerbell_edges=10.0.0.2", {}, "tinkerbell_edges: '10.0.0.2' is not like"),
        (f"{CMDLINE} tinkerbell_tls_ca=http://h/ca.pem", {}, "tinkerbell_tls_ca"),
        (f"{CMDLINE} tinkerbell_tls_ca=http://h/ca.pem#sha256=0a", {}, "tinkerbell_tls_ca"),
        (f"{CMDLINE} tinkerbell_registry_ca=http://h/registries.json", {}, "tinkerbell_registry_ca"),
        (f"{CMDLINE} tinkerbell_tls_ca={PIN.replace('http', 'file')}", {}, "tinkerbell_tls_ca"),
        (CMDLINE, {"token": "a b"}, "tinkerbell_token"),
        (CMDLINE, {"token": "\n"}, "tinkerbell_token"),
        (CMDLINE, {"tls_cert": Path("/c")}, "tls_cert and tls_key"),
        (CMDLINE, {"tls_key": Path("/k")}, "tls_cert and tls_key"),
    ],
)
def test_bad_setting_is_named(cmdline, flags, named):
    with pytest.raises(AgentSettingsError, match=named):
        from_kernel_command_line(cmdline, **flags)


def test_servers_and_edges_beside_that_of_the_boot_come_with_the_kernel_command_line():
    more = "tinkerbell_servers=10.0.0.2:42113,10.0.0.3:42113 tinkerbell_edges=10.0.0.2:7080"
    settings = from_kernel_command_line(f"worker_id=m grpc_authority=10.0.0.1:42113 {more}")
    assert settings.target == "ipv4:10.0.0.1:42113,10.0.0.2:42113,10.0.0.3:42113"
    assert settings.edges == ("10.0.0.2:7080",)
    # A server from the command line is the only one; a name can't stand beside addresses.
    assert from_kernel_command_line(f"{CMDLINE} {more}", server="10.9.9.9:1").target == "10.9.9.9:1"
    assert from_kernel_command_line(f"worker_id=m grpc_authority=tink.example:1 {more}").target == "tink.example:1"
