"""The Helm chart and the files that are generated from it. The chart is the only source of all manifests.

    values.schema.json      type and bounds of each value; options of tinkedge have the bounds of the commands
    files/webhooks.yaml     the admission webhooks that the controller expects, without the values of a release
    deploy/rbac*.yaml, deploy/webhooks.yaml, deploy/metal3-webhook.yaml, deploy/kustomize
                            the rendered chart, for installations without Helm

tests/interop/test_chart.py generates all of these files again and compares them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import yaml

from deploy.package.target import PackageError
from edge.cli import main as commands
from edge.settings import REMOVED, key, settable
from tink.webhooks.admission import Admission
from tink.webhooks.registration import Address, configuration

DEPLOY: Final = Path(__file__).resolve().parents[1]
CHART: Final = DEPLOY / "chart" / "tinkedge"
HEADS: Final = DEPLOY / "chart" / "heads"
"""Headers of the files generated from the chart."""
NAMESPACE: Final = "tinkedge"
_SCHEMA: Final = DEPLOY / "chart" / "values.schema.yaml"

_RULE: Final = "range=192.0.2.10-192.0.2.250/24,osie=default/hook,only=listed"
"""A rule of --discover that needs all rights that a rule can need."""
_MADE: Final = "# Made of deploy/chart by `make chart`: change it there.\n"
_OWN_NAMESPACE: Final = f"---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n"
_KUSTOMIZATION: Final = f"""\
{_MADE}# What the chart makes of its default values. To have it otherwise, make an overlay: docs/cluster.md has one.
#
#   kubectl apply --server-side -k deploy/kustomize
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: {NAMESPACE}
resources:
  - namespace.yaml
  - crds.yaml
  - tinkedge.yaml
"""


@dataclass(frozen=True)
class Helm:
    """Helm with the chart."""

    program: Path

    def template(self, *options: str, namespace: str = NAMESPACE) -> str:
        """Render the chart with these options. Raises PackageError with Helm's message."""
        return self.run("template", "tinkedge", str(CHART), "--namespace", namespace, *options)

    def run(self, *arguments: str) -> str:
        """Run Helm; return its output. Raises PackageError."""
        done = subprocess.run([str(self.program), *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PackageError(done.stderr.strip() or done.stdout.strip())
        return done.stdout


def webhooks() -> str:
    """Return the text of files/webhooks.yaml. Upper-case words stand for values of a release."""
    address = Address(Admission.path, namespace="NAMESPACE", name="SERVICE")
    found = configuration(address, b"", "FAILURE_POLICY")["webhooks"]
    for webhook in found:
        del webhook["clientConfig"]["caBundle"]
    return _MADE.replace("deploy/chart", "tink/webhooks/registration.py") + yaml.safe_dump(found, sort_keys=False)


def rendered(helm: Helm) -> dict[Path, str]:
    """Return the files below deploy/ that are generated from the chart, with their text. Raises PackageError."""
    accounts, rbac = "templates/serviceaccounts.yaml", "templates/rbac.yaml"
    metal3 = _only("metal3"), "--show-only", accounts, "--show-only", "templates/rbac-metal3.yaml"
    webhook = _only("metal3Webhook"), "--show-only", accounts, "--show-only", "templates/rbac-metal3-webhook.yaml"
    secrets = helm.template("--set", "rbac.secretsNamespaces={NAMESPACE}", "--show-only", rbac)
    peers = helm.template("--set", "edge.peers=true", "--show-only", rbac)
    bmc = helm.template("--set", "bmc.enabled=true", "--show-only", "templates/rbac-bmc.yaml")
    v1alpha1 = helm.template("--set", "v1alpha1.enabled=true", "--show-only", "templates/rbac-v1alpha1.yaml")
    discovery = helm.template("--set", "discovery.enabled=true", "--show-only", "templates/rbac-discovery.yaml")
    edge_discovery = helm.template(
        *(
            "--set",
            "discovery.enabled=true",
            "--set-json",
            f"discovery.rules={json.dumps([_RULE])}",
            "--show-only",
            rbac,
        )
    )
    attributes = helm.template("--set", "server.agentAttributes=true", "--show-only", rbac)
    files = {
        "rbac-attributes.yaml": _named(_plain(attributes), "tinkedge-server-attributes"),
        "rbac-bmc.yaml": _plain(bmc),
        "rbac-discovery.yaml": _plain(discovery),
        "rbac-v1alpha1.yaml": _plain(v1alpha1),
        "rbac-edge-discovery.yaml": _named(
            _plain(edge_discovery), "tinkedge-edge-discovery", "tinkedge-edge-discovery-delete"
        ),
        "rbac-peers.yaml": _named(_plain(peers), "tinkedge-edge-peers", "tinkedge-server-peers"),
        "webhooks.yaml": _plain(helm.template("--show-only", "templates/webhooks.yaml")),
        "rbac.yaml": _OWN_NAMESPACE + _plain(helm.template("--show-only", accounts, "--show-only", rbac)),
        "rbac-secrets.yaml": _applied_anywhere(_plain(secrets)),
        "rbac-metal3.yaml": _plain(helm.template(*metal3[0], *metal3[1:])),
        "metal3-webhook.yaml": _plain(helm.template(*webhook[0], *webhook[1:])),
    }
    found = {DEPLOY / name: (HEADS / name).read_text() + _MADE + text for name, text in files.items()}
    crds = helm.template("--show-only", "templates/crds.yaml", "--set", "crds.keep=false")
    rest = helm.template("--no-hooks", "--set", "crds.install=false")
    kustomize = DEPLOY / "kustomize"
    return found | {
        kustomize / "kustomization.yaml": _KUSTOMIZATION,
        kustomize / "namespace.yaml": _MADE + _OWN_NAMESPACE,
        kustomize / "crds.yaml": _MADE + _plain(crds),
        kustomize / "tinkedge.yaml": _MADE + _plain(rest),
    }


def _only(part: str) -> tuple[str, ...]:
    """Return the options that render only one part of the chart."""
    parts = {"edge", "server", "controller", "metal3", "metal3Webhook"}
    return tuple(word for each in sorted(parts) for word in ("--set", f"{each}.enabled={str(each == part).lower()}"))


def _plain(text: str) -> str:
    """Return rendered objects without the parts for Helm or for one release."""
    left_out = ("# Source: ", "app.kubernetes.io/managed-by: ", "app.kubernetes.io/version: ", "helm.sh/chart: ")
    kept = [line.rstrip() for line in text.splitlines() if not line.strip().startswith(left_out)]
    documents = re.split(r"^---$", "\n".join(kept), flags=re.MULTILINE)
    return "".join(f"---\n{document.strip()}\n" for document in documents if _says_something(document))


def _says_something(document: str) -> bool:
    return any(line and not line.startswith("#") for line in document.splitlines())


def _named(text: str, *names: str) -> str:
    """Return the objects with these names. A namespace brings the objects of the same names in it."""
    lines = [f"\n  name: {name}{suffix}\n" for name in names for suffix in ("", f".{NAMESPACE}")]
    documents = [each for each in text.split("---\n") if any(line in each for line in lines)]
    return "".join(f"---\n{each}" for each in documents)


def _applied_anywhere(text: str) -> str:
    """Remove the namespace from objects for NAMESPACE."""
    documents = [each for each in text.split("---\n") if "\n  namespace: NAMESPACE\n" in each]
    return "".join(f"---\n{each.replace('  namespace: NAMESPACE' + chr(10), '')}" for each in documents)


# --- values.schema.json -----------------------------------------------------------------------------------------------

Schema = dict[str, Any]

ROLES: Final = {
    "edge": "edge",
    "server": "server",
    "controller": "controller",
    "metal3": "metal3",
    "metal3-webhook": "metal3Webhook",
}
"""Command -> its key in the values."""

_OF_THE_CHART: Final = frozenset(
    {
        *("config", "context", "data-dir", "disable", "grpc-authority", "grpc-client-ca", "grpc-port", "grpc-tls-ca"),
        *("grpc-tls-cert", "grpc-tls-key", "health-address", "interface", "kubeconfig", "lease-namespace"),
        *("metrics-address", "once", "public-ip", "webhook-failure-policy", "webhook-port", "webhook-service"),
        *("webhook-url", "agent-token-key", "metadata-token-key", "reports-key", "admin-token-file"),
        *("namespaces", "hardware-selector", "webhook-configuration", "peer-group"),
    }
)
"""Options that have other values in the chart, or only one meaning in a pod."""

_OF_A_ROLE: Final = frozenset(
    {("controller", "bmc"), ("controller", "discovery"), ("controller", "serve-v1alpha1"), ("edge", "discover")}
)
"""Options of one role that have another value in the chart, which also grants the rights."""


def values_schema() -> str:
    """Return the text of values.schema.json, made from values.schema.yaml (JSON Schema, draft 7)."""
    base = yaml.safe_load(_SCHEMA.read_text())
    options = {role: dict(_options(role)) for role in ROLES}
    values = base["chart"]
    values["settings"]["properties"] = {name: one for each in options.values() for name, one in each.items()}
    for role, value in ROLES.items():
        settings = {**base["role"]["settings"], "properties": options[role]}
        values[value] = {"properties": base["role"] | {"settings": settings} | base["roles"][value]}
    schema = _closed({"properties": values, "title": "Values of the chart tinkedge"})
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#"} | schema, indent=2) + "\n"


def _closed(schema: Any) -> Any:
    """Return a schema in which each object with properties has the type object and allows no other properties."""
    if not isinstance(schema, dict):
        return schema
    known = {key: _closed(value) for key, value in schema.items() if key != "properties"}
    if "properties" not in schema:
        return known
    properties = {name: _closed(value) for name, value in schema["properties"].items()}
    return {"type": "object", "additionalProperties": False, "properties": properties, **known}


def _options(role: str) -> Iterator[tuple[str, Schema]]:
    """Return the options of a command that a user of the chart sets by their names."""
    command = commands.get_command(click.Context(commands), role)
    if command is None:
        raise PackageError(f"there is no command {role}")
    for option in sorted(settable(command), key=key):
        if key(option) not in _OF_THE_CHART and (role, key(option)) not in _OF_A_ROLE:
            yield key(option), _option(option) | {"description": option.help or ""}
    if role == "edge":
        # The schema accepts removed options, so that `tinkedge.check` in the templates can refuse them with the remedy.
        yield from ((name, {"description": f"Removed: {remedy}"}) for name, remedy in REMOVED.items())


def _option(option: click.Option) -> Schema:
    kind = option.type
    if option.is_flag:
        return {"type": "boolean"}
    one: Schema = {"type": "string"}
    if isinstance(kind, click.Choice):
        one = {"enum": list(kind.choices)}
    elif isinstance(kind, (click.IntRange, click.FloatRange)):
        one = {"type": "integer" if isinstance(kind, click.IntRange) else "number", **_bounds(kind)}
    elif kind is click.INT or kind is click.FLOAT:
        one = {"type": "integer" if kind is click.INT else "number"}
    elif kind.name == "size":
        one = {"type": ["string", "integer"]}
    if option.multiple or kind.name.endswith(",..."):
        return {"anyOf": [{"type": "array", "items": one}, one]}
    return one


def _bounds(kind: click.IntRange | click.FloatRange) -> Schema:
    found: Schema = {}
    if kind.min is not None:
        found["exclusiveMinimum" if kind.min_open else "minimum"] = kind.min
    if kind.max is not None:
        found["exclusiveMaximum" if kind.max_open else "maximum"] = kind.max
    return found
