"""The Helm chart, and what is made of it: one source for all ways onto a cluster.

    values.schema.json      what each value may be; options of tinkedge as the commands have them
    deploy/rbac*.yaml, deploy/metal3-webhook.yaml, deploy/kustomize
                            the chart, rendered, for those without Helm

tests/interop/test_chart.py makes all of it anew and compares.
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

from deploy.package.target import PackageError
from edge.cli import main as commands
from edge.configuration import key, settable

DEPLOY: Final = Path(__file__).resolve().parents[1]
CHART: Final = DEPLOY / "chart" / "tinkedge"
NAMESPACE: Final = "tinkedge"

_HEADS: Final = {
    "rbac.yaml": """\
# What each component may do on a cluster, and no more: a service account each, in the namespace tinkedge.
#
#   tinkedge crds | kubectl apply -f -
#   kubectl apply -f deploy/rbac.yaml
#
# tests/interop/test_privileges.py runs the components with exactly this, and fails for a rule that none of them uses.
# Objects to apply at the start (--manifests) are applied as the same account, which takes more: get, create and patch
# on their kinds.
""",
    "rbac-secrets.yaml": """\
# For clusters whose Hardware keep user-data or vendor-data in Secrets (annotations tinkerbell.org/userdata-secret and
# vendordata-secret): lets the edge get them. Nothing else needs it, and deploy/rbac.yaml does not grant it.
#
#   kubectl apply -n NAMESPACE -f deploy/rbac-secrets.yaml
#
# once for each namespace with such Hardware. An edge that may get a Secret gives it to any machine whose Hardware names
# it: keep such Hardware apart from other Secrets, or name the Secrets below.
""",
    "rbac-peers.yaml": """\
# For edges that find each other by Leases (--peer-group): lets them keep these in their own namespace, and servers that
# run apart read where edges are. After deploy/rbac.yaml. A rule can't name what does not exist yet, so it is for all
# Leases there: give edges that are not to touch those of others a namespace of their own.
#
#   kubectl apply -f deploy/rbac-peers.yaml
""",
    "rbac-metal3.yaml": """\
# What `tinkedge metal3` may do on a cluster, and no more. After deploy/rbac.yaml, which makes the namespace tinkedge:
#
#   kubectl apply -f deploy/rbac-metal3.yaml
#
# Hosts that have networkData or metaData: let it get these Secrets, in each namespace with hosts. It never reads
# user-data, but RBAC can't tell one Secret of a namespace from another unless they are named: to name them, make a Role
# with resourceNames of your own instead.
#
#   kubectl create rolebinding -n NAMESPACE tinkedge-metal3-secrets \\
#     --clusterrole=tinkedge-metal3-secrets --serviceaccount=tinkedge:tinkedge-metal3
#
# With --bmc, for Rufio's Machines:
#
#   kubectl create clusterrolebinding tinkedge-metal3-bmc \\
#     --clusterrole=tinkedge-metal3-bmc --serviceaccount=tinkedge:tinkedge-metal3
#
# tests/interop/test_metal3.py runs it with exactly this, and fails for a rule that is not used.
""",
    "metal3-webhook.yaml": """\
# What `tinkedge metal3-webhook` and `tinkedge metal3-migrate` need on a cluster, and no more. After deploy/rbac.yaml,
# which makes the namespace tinkedge:
#
#   kubectl apply -f deploy/metal3-webhook.yaml
#
# Run two or more replicas of the webhook, in pods with the labels of the Service's selector and the service account
# below:
#
#   tinkedge metal3-webhook --webhook-service tinkedge/tinkedge-metal3-webhook
#
# While none of them answers, hosts can be read and written in the version that they are stored in, and in no other.
# Whoever reaches port 9443 can have hosts converted, and learns nothing by it: still, let only the API server in with a
# NetworkPolicy, if you know where it comes from.
#
# tests/interop/test_metal3_versions.py and test_metal3_migration.py run them with exactly this, and fail for a rule
# that is not used.
""",
}
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
    """The program, and the chart that it renders."""

    program: Path

    def template(self, *options: str, namespace: str = NAMESPACE) -> str:
        """What the chart makes of these options. Raises PackageError with Helm's words."""
        return self.run("template", "tinkedge", str(CHART), "--namespace", namespace, *options)

    def run(self, *arguments: str) -> str:
        """What Helm prints. Raises PackageError."""
        done = subprocess.run([str(self.program), *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PackageError(done.stderr.strip() or done.stdout.strip())
        return done.stdout


def rendered(helm: Helm) -> dict[Path, str]:
    """Every file below deploy/ that is made of the chart, with its text. Raises PackageError."""
    accounts, rbac = "templates/serviceaccounts.yaml", "templates/rbac.yaml"
    metal3 = _only("metal3"), "--show-only", accounts, "--show-only", "templates/rbac-metal3.yaml"
    webhook = _only("metal3Webhook"), "--show-only", accounts, "--show-only", "templates/rbac-metal3-webhook.yaml"
    secrets = helm.template("--set", "rbac.secretsNamespaces={NAMESPACE}", "--show-only", rbac)
    peers = helm.template("--set", "edge.peers=true", "--show-only", rbac)
    files = {
        "rbac-peers.yaml": _named(_plain(peers), "tinkedge-edge-peers", "tinkedge-server-peers"),
        "rbac.yaml": _OWN_NAMESPACE + _plain(helm.template("--show-only", accounts, "--show-only", rbac)),
        "rbac-secrets.yaml": _applied_anywhere(_plain(secrets)),
        "rbac-metal3.yaml": _plain(helm.template(*metal3[0], *metal3[1:])),
        "metal3-webhook.yaml": _plain(helm.template(*webhook[0], *webhook[1:])),
    }
    found = {DEPLOY / name: _HEADS[name] + _MADE + text for name, text in files.items()}
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
    """Options that leave nothing but one part of the chart."""
    parts = {"edge", "server", "controller", "metal3", "metal3Webhook"}
    return tuple(word for each in sorted(parts) for word in ("--set", f"{each}.enabled={str(each == part).lower()}"))


def _plain(text: str) -> str:
    """Rendered objects without what only Helm needs, or what is of one release."""
    left_out = ("# Source: ", "app.kubernetes.io/managed-by: ", "app.kubernetes.io/version: ", "helm.sh/chart: ")
    kept = [line.rstrip() for line in text.splitlines() if not line.strip().startswith(left_out)]
    documents = re.split(r"^---$", "\n".join(kept), flags=re.MULTILINE)
    return "".join(f"---\n{document.strip()}\n" for document in documents if _says_something(document))


def _says_something(document: str) -> bool:
    return any(line and not line.startswith("#") for line in document.splitlines())


def _named(text: str, *names: str) -> str:
    """Of the objects those of these names."""
    documents = [each for each in text.split("---\n") if any(f"\n  name: {name}\n" in each for name in names)]
    return "".join(f"---\n{each}" for each in documents)


def _applied_anywhere(text: str) -> str:
    """Of the objects for NAMESPACE, without that."""
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
"""Options that other values are for, or that have one meaning only in a pod."""


def _object(properties: Schema, **more: Any) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties, **more}


_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_ANY: Final[Schema] = {"type": "object"}
_OBJECTS: Final[Schema] = {"type": "array", "items": _ANY}
_LABELS: Final[Schema] = {"type": "object", "additionalProperties": _TEXT}
_PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NAMESPACE: Final[Schema] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_SECRET_KEY: Final = _object({"secretName": _TEXT, "key": {"type": "string", "minLength": 1}})
_ADDRESS: Final[Schema] = {
    "type": "string",
    "pattern": r"^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?)?$",
    "description": "HOST or HOST:PORT: an IPv4 address or a name, no URL.",
}


def values_schema() -> str:
    """The text of values.schema.json (JSON Schema, draft 7, as all versions of Helm read)."""
    settings = {role: dict(_options(role)) for role in ROLES}
    every = {name: schema for options in settings.values() for name, schema in options.items()}
    roles = {value: _role(settings[role], _OWN[role]) for role, value in ROLES.items()}
    schema = _object(
        {
            "global": _ANY,
            "nameOverride": _TEXT,
            "fullnameOverride": _TEXT,
            "image": _object(
                {
                    "repository": {"type": "string", "minLength": 1},
                    "tag": _TEXT,
                    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
                    "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
                }
            ),
            "imagePullSecrets": {"type": "array", "items": _object({"name": _TEXT}, required=["name"])},
            "settings": _object(every, description="Options of all roles, by their names in docs/configuration.md."),
            "crds": _object({"install": _FLAG, "keep": _FLAG, "metal3": _FLAG}),
            "scope": _object(
                {
                    "namespaces": {"type": "array", "items": _NAMESPACE, "uniqueItems": True},
                    "hardwareSelector": {"type": "string", "description": "As kubectl's option -l takes it."},
                }
            ),
            "rbac": _object({"create": _FLAG, "secretsNamespaces": _TEXTS}),
            "keys": _object({"existingSecret": _TEXT}),
            "networkPolicy": _object(
                {
                    "enabled": _FLAG,
                    "metricsFrom": _OBJECTS,
                    "egress": _object({"enabled": _FLAG, "apiPorts": {"type": "array", "items": _PORT}}),
                }
            ),
            "priorityClass": _object(
                {"create": _FLAG, "value": {"type": "integer", "maximum": 1_000_000_000}, "name": _TEXT}
            ),
            "metrics": _object(
                {
                    "serviceMonitor": _object({"enabled": _FLAG, "interval": _TEXT, "labels": _LABELS}),
                    "prometheusRule": _object({"enabled": _FLAG, "labels": _LABELS}),
                    "dashboard": _object({"enabled": _FLAG, "labels": _LABELS}),
                }
            ),
            **roles,
        },
        title="Values of the chart tinkedge",
    )
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#"} | schema, indent=2) + "\n"


def _role(settings: Schema, own: Schema) -> Schema:
    """What every role has, and what this one has besides."""
    return _object(
        {
            "enabled": _FLAG,
            "replicas": _COUNT,
            "settings": _object(settings, description="Options of this role, by their names in docs/configuration.md."),
            "healthPort": _PORT,
            "podDisruptionBudget": _FLAG,
            "resources": _ANY,
            "securityContext": _ANY,
            "podSecurityContext": _ANY,
            "serviceAccount": _object({"create": _FLAG, "name": _TEXT, "annotations": _LABELS}),
            "podAnnotations": _LABELS,
            "podLabels": _LABELS,
            "nodeSelector": _LABELS,
            "tolerations": _OBJECTS,
            "affinity": _ANY,
            "topologySpreadConstraints": _OBJECTS,
            "terminationGracePeriodSeconds": _COUNT,
            "extraArgs": _TEXTS,
            "extraEnv": _OBJECTS,
            "extraVolumes": _OBJECTS,
            "extraVolumeMounts": _OBJECTS,
            **own,
        }
    )


_OWN: Final[dict[str, Schema]] = {
    "edge": {
        "kind": {"enum": ["DaemonSet", "Deployment"]},
        "interfaces": {"type": "array", "items": {"type": "string", "pattern": r"^[^\s=/]+(=[0-9]+(\.[0-9]+){3})?$"}},
        "hostNetwork": _FLAG,
        "disable": {"type": "array", "items": {"enum": ["admin", "dhcp", "http", "tftp"]}},
        "peers": _FLAG,
        "cache": _object({"hostPath": {"type": "string", "pattern": "^(/.*)?$"}, "existingClaim": _TEXT}),
    },
    "server": {
        "mode": {"enum": ["edges", "service"]},
        "preStopSeconds": {"type": "integer", "minimum": 0, "maximum": 300},
        "address": _ADDRESS,
        "port": _PORT,
        "service": _object(
            {
                "type": {"enum": ["LoadBalancer", "NodePort", "ClusterIP"]},
                "loadBalancerClass": _TEXT,
                "loadBalancerIP": _TEXT,
                "loadBalancerSourceRanges": _TEXTS,
                "externalIPs": _TEXTS,
                "externalTrafficPolicy": {"enum": ["Local", "Cluster"]},
                "nodePort": {"type": "integer", "minimum": 0, "maximum": 65535},
                "annotations": _LABELS,
                "labels": _LABELS,
            }
        ),
        "tls": _object(
            {
                "secretName": _TEXT,
                "ca": _SECRET_KEY,
                "clientCA": _SECRET_KEY,
                "certManager": _object(
                    {
                        "enabled": _FLAG,
                        "issuerRef": _object({"name": _TEXT, "kind": _TEXT, "group": _TEXT}),
                        "duration": _TEXT,
                        "dnsNames": _TEXTS,
                        "ipAddresses": _TEXTS,
                    }
                ),
            }
        ),
    },
    "controller": {
        "webhooks": _object({"enabled": _FLAG, "failurePolicy": {"enum": ["Ignore", "Fail"]}, "port": _PORT})
    },
    "metal3": {"secretsNamespaces": _TEXTS},
    "metal3-webhook": {"port": _PORT},
}


def _options(role: str) -> Iterator[tuple[str, Schema]]:
    """The options of a command that a user of the chart sets by their names."""
    command = commands.get_command(click.Context(commands), role)
    if command is None:
        raise PackageError(f"there is no command {role}")
    for option in sorted(settable(command), key=key):
        if key(option) not in _OF_THE_CHART:
            yield key(option), _option(option) | {"description": option.help or ""}


def _option(option: click.Option) -> Schema:
    kind = option.type
    if option.is_flag:
        return dict(_FLAG)
    one: Schema = dict(_TEXT)
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
