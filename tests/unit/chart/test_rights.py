"""The rights of every service account, from the generated manifests, and the limits of the admission policies.

The table contains all rights of each account: a rule without a row fails a test, and so does a row without a rule.
tests/interop/test_privileges.py runs the components with these rules; `make test-cluster` attacks a real API server.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

import pytest
import yaml

from deploy.package.chart import DEPLOY
from tink.api.v1alpha2 import HardwareStatus
from tink.discovery.admission import discovered_hardware, read_rule
from tink.kubeapi import cel
from tink.webhooks.registration import Address, configuration

Raw = dict[str, Any]

DEFAULT = ("kustomize/tinkedge.yaml",)
OPTIONAL = (
    *("rbac-attributes.yaml", "rbac-bmc.yaml", "rbac-peers.yaml", "rbac-secrets.yaml", "rbac-metal3.yaml"),
    *("rbac-discovery.yaml", "rbac-edge-discovery.yaml", "metal3-webhook.yaml", "rbac-v1alpha1.yaml"),
)

RIGHTS = {
    ("tinkedge-controller", DEFAULT): {
        "cluster: tinkerbell.org/hardware: get,list,watch",
        "cluster: tinkerbell.org/osies: list,watch",
        "cluster: tinkerbell.org/templates: get,list,watch",
        "cluster: tinkerbell.org/workflows: delete,list,patch,watch",
        "cluster: tinkerbell.org/workflows/status: patch",
        "cluster: /events: create",
        "cluster: admissionregistration.k8s.io/validatingwebhookconfigurations[tinkedge-webhooks.tinkedge]: get,patch",
        "tinkedge: coordination.k8s.io/leases: create",
        "tinkedge: coordination.k8s.io/leases[tinkedge-controller]: get,patch,watch",
        "tinkedge: /secrets[tinkedge-webhooks-ca]: get,patch,watch",
    },
    ("tinkedge-controller", ("rbac-bmc.yaml",)): {
        "cluster: bmc.tinkerbell.org/machines: get,list,patch,watch",
        "cluster: bmc.tinkerbell.org/machines/status: patch",
        "cluster: bmc.tinkerbell.org/jobs: delete,list,watch",
        "cluster: bmc.tinkerbell.org/jobs/status: patch",
        "cluster: bmc.tinkerbell.org/tasks: create,get,list,watch",
        "cluster: bmc.tinkerbell.org/tasks/status: patch",
        "cluster: tinkerbell.org/hardware: patch",
        "cluster: tinkerbell.org/hardware/status: patch",
        "cluster: tinkerbell.org/workflows: get,list,patch,watch",
        "cluster: tinkerbell.org/workflows/status: patch",
        "cluster: coordination.k8s.io/leases[e74dec1a.bmc.tinkerbell.org]: list",
        "cluster: coordination.k8s.io/leases[e74dec1a.tinkerbell.org]: list",
        "cluster: /secrets: get",
        "tinkedge: coordination.k8s.io/leases: create",
        "tinkedge: coordination.k8s.io/leases[e74dec1a.bmc.tinkerbell.org]: get,patch,watch",
    },
    ("tinkedge-controller", ("rbac-discovery.yaml",)): {
        "cluster: /configmaps: list,watch",
        "cluster: tinkerbell.org/hardware: create,delete,get,patch",
        "cluster: tinkerbell.org/hardware/status: patch",
        "cluster: bmc.tinkerbell.org/machines: create",
        "tinkedge: coordination.k8s.io/leases: create",
        "tinkedge: coordination.k8s.io/leases[tinkedge-discovery]: get,patch,watch",
    },
    ("tinkedge-controller", ("rbac-v1alpha1.yaml",)): {
        *(
            f"cluster: apiextensions.k8s.io/customresourcedefinitions[{plural}.tinkerbell.org]: get,patch,watch"
            for plural in ("hardware", "templates", "workflows")
        ),
        *(
            f"cluster: apiextensions.k8s.io/customresourcedefinitions[{plural}.bmc.tinkerbell.org]: get,watch"
            for plural in ("machines", "jobs", "tasks")
        ),
        "cluster: coordination.k8s.io/leases[tink-controller.tinkerbell.org]: list",
        "cluster: coordination.k8s.io/leases[tink.tinkerbell.org]: list",
    },
    ("tinkedge-edge", ("rbac-edge-discovery.yaml",)): {
        "cluster: tinkerbell.org/hardware: create,delete",
        "cluster: /configmaps: list,watch",
    },
    ("tinkedge-server", DEFAULT): {
        "cluster: tinkerbell.org/hardware: list,watch",
        "cluster: tinkerbell.org/hardware/status: patch",
        "cluster: tinkerbell.org/workflows: get,list,watch",
        "cluster: tinkerbell.org/workflows/status: patch",
        "cluster: /events: create",
    },
    ("tinkedge-server", ("rbac-attributes.yaml",)): {"cluster: tinkerbell.org/hardware: patch"},
    ("tinkedge-server", ("rbac-peers.yaml",)): {"tinkedge: coordination.k8s.io/leases: list"},
    ("tinkedge-edge", DEFAULT): {
        "cluster: tinkerbell.org/hardware: get,list,watch",
        "cluster: tinkerbell.org/hardware/status: patch",
        "cluster: tinkerbell.org/osies: list,watch",
        "cluster: tinkerbell.org/workflows: list,watch",
        "cluster: /events: create",
    },
    ("tinkedge-edge", ("rbac-peers.yaml",)): {"tinkedge: coordination.k8s.io/leases: create,list,patch"},
    ("tinkedge-edge", ("rbac-secrets.yaml",)): {"NAMESPACE: /secrets: get"},
    ("tinkedge-metal3", ("rbac-metal3.yaml",)): {
        "cluster: metal3.io/baremetalhosts: get,list,watch",
        "cluster: metal3.io/hardwaredata: list,watch",
        "cluster: tinkerbell.org/hardware: create,delete,get,list,patch,watch",
        "cluster: tinkerbell.org/workflows: list,watch",
        "cluster: /events: create",
        "tinkedge: coordination.k8s.io/leases: create",
        "tinkedge: coordination.k8s.io/leases[tinkedge-metal3]: get,patch,watch",
    },
    ("tinkedge-metal3-webhook", ("metal3-webhook.yaml",)): {
        "cluster: apiextensions.k8s.io/customresourcedefinitions[baremetalhosts.metal3.io]: get,patch",
        "tinkedge: /secrets[tinkedge-metal3-webhook-ca]: get,patch,watch",
    },
}
"""The rights by account and files, each as WHERE: GROUP/RESOURCE[NAME]: VERBS."""

GUARDED = {
    "validatingwebhookconfigurations[tinkedge-webhooks.tinkedge]": "tinkedge-webhook-registration.tinkedge",
    "customresourcedefinitions[baremetalhosts.metal3.io]": "tinkedge-metal3-webhook.tinkedge",
    **{
        f"customresourcedefinitions[{plural}.tinkerbell.org]": "tinkedge-v1alpha1.tinkedge"
        for plural in ("hardware", "templates", "workflows")
    },
}
"""The policy for each right to write an object of the cluster, which RBAC can't narrow."""


def objects(*files: str) -> list[Raw]:
    found = [yaml.load_all((DEPLOY / file).read_text(), Loader=yaml.CSafeLoader) for file in files]
    return [each for documents in found for each in documents if each]


EVERYTHING = objects("rbac.yaml", *DEFAULT, *OPTIONAL)
POLICIES = [each for each in EVERYTHING if each["kind"] == "ValidatingAdmissionPolicy"]


def rights(account: str, files: tuple[str, ...]) -> set[str]:
    """Return all rights of a service account by the roles of these files."""
    verbs: dict[str, set[str]] = {}
    for where, rule in rules(account, files):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    key = f"{where}: {group}/{resource}{f'[{name}]' if name else ''}"
                    verbs.setdefault(key, set()).update(rule["verbs"])
    return {f"{key}: {','.join(sorted(each))}" for key, each in verbs.items()}


def rules(account: str, files: tuple[str, ...]) -> list[tuple[str, Raw]]:
    """Return the rules that are bound to an account, with the namespace in which they apply."""
    found = objects(*files)
    roles = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in found if "rules" in each}
    bound = [each for each in found if account in [subject["name"] for subject in each.get("subjects", [])]]
    return [
        ("cluster" if each["kind"] == "ClusterRoleBinding" else each["metadata"].get("namespace", "NAMESPACE"), rule)
        for each in bound
        for rule in roles[each["roleRef"]["kind"], each["roleRef"]["name"]]
    ]


@pytest.mark.parametrize(("account", "files"), RIGHTS, ids=lambda each: str(each))
def test_account_has_the_rights_of_the_table_and_no_others(account, files):
    assert rights(account, files) == RIGHTS[account, files]


def test_table_has_every_account_that_a_role_is_bound_to():
    for files in (DEFAULT, *((file,) for file in OPTIONAL)):
        accounts = {subject["name"] for each in objects(*files) for subject in each.get("subjects", [])}
        assert accounts == {account for account, of in RIGHTS if of == files}, files


def test_no_role_has_rights_over_whole_kinds_that_lead_to_others_secrets():
    for each in EVERYTHING:
        for rule in each.get("rules", []):
            name = f"{each['kind']} {each['metadata']['name']}: {rule}"
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]], name
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"]), name
            assert "rbac.authorization.k8s.io" not in rule["apiGroups"], name
            for group in ("admissionregistration.k8s.io", "apiextensions.k8s.io"):
                assert group not in rule["apiGroups"] or rule.get("resourceNames"), name
            if "secrets" in rule["resources"]:
                assert rule.get("resourceNames") or rule["verbs"] == ["get"], name
            if "leases" in rule["resources"]:
                assert "delete" not in rule["verbs"], name
            assert "serviceaccounts/token" not in rule["resources"], name
            assert "pods" not in rule["resources"], name


def test_no_secret_is_readable_by_default_but_the_authority_of_the_webhooks():
    found = [each for each in objects(*DEFAULT) if each["kind"] in ("Role", "ClusterRole")]
    named = [rule.get("resourceNames") for each in found for rule in each["rules"] if "secrets" in rule["resources"]]
    assert named == [["tinkedge-webhooks-ca"]]


# --- what RBAC can't narrow -------------------------------------------------------------------------------------------


def test_rights_of_a_whole_object_of_the_cluster_have_a_policy():
    policies = {each["metadata"]["name"] for each in POLICIES}
    for account, files in RIGHTS:
        for _, rule in rules(account, files):
            if not {"create", "update", "patch", "delete"} & {*rule["verbs"]}:
                continue
            for resource in {"validatingwebhookconfigurations", "customresourcedefinitions"} & {*rule["resources"]}:
                for name in rule["resourceNames"]:
                    assert GUARDED[f"{resource}[{name}]"] in policies
    narrowed = (
        "tinkedge-server-inventory",
        "tinkedge-server-attributes",
        "tinkedge-edge-peers",
        "tinkedge-bmc-netboot",
        "tinkedge-discovery",
        "tinkedge-edge-discovery",
        "tinkedge-edge-discovery-delete",
    )
    assert {f"{name}.tinkedge" for name in narrowed} <= policies


@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: str(each["metadata"]["name"]))
def test_policy_is_in_force_for_its_account_alone(policy):
    name = policy["metadata"]["name"]
    bindings = [
        each["spec"]
        for each in EVERYTHING
        if each["kind"] == "ValidatingAdmissionPolicyBinding" and each["metadata"]["name"] == name
    ]
    assert bindings
    for binding in bindings:
        assert binding == {"policyName": name, "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    (condition,) = policy["spec"]["matchConditions"]
    account = policy["metadata"]["labels"]["app.kubernetes.io/component"]
    assert (
        condition["expression"] == f'request.userInfo.username == "system:serviceaccount:tinkedge:tinkedge-{account}"'
    )


def refusals(name: str, new: Raw, old: Raw | None, user: Raw | None = None) -> list[str]:
    """Return the messages of a policy's validations that reject a write."""
    policy = next(each["spec"] for each in POLICIES if each["metadata"]["name"] == f"tinkedge-{name}.tinkedge")
    bindings: Raw = {"object": new, "oldObject": old, "request": {"userInfo": user or {}}}
    types = dict.fromkeys([*bindings, "variables"], cel.types.DYN)

    def evaluate(expression: str) -> Any:
        return cel.compile_expression(expression, types)(bindings, cel.CostBudget())

    bindings["variables"] = {each["name"]: evaluate(each["expression"]) for each in policy.get("variables", [])}
    return [each["message"] for each in policy["validations"] if evaluate(each["expression"]) is not True]


def changed(obj: Raw, change: Callable[[Raw], object]) -> Raw:
    """Return a changed copy of an object."""
    new = copy.deepcopy(obj)
    change(new)
    return new


ADDRESS = Address("/admission", namespace="tinkedge", name="tinkedge-webhooks")
REGISTERED = configuration(ADDRESS, b"CA", "Fail", (), "tinkedge-webhooks.tinkedge")


SECRETS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"], "scope": "*"}


FIRST_MAC = "52:54:00:00:00:01"
STATUS_FIELDS = [info.alias or name for name, info in HardwareStatus.model_fields.items()]
HARDWARE: Raw = {
    "metadata": {"name": "m1", "labels": {"site": "berlin"}, "annotations": {"tinkerbell.org/agent-id": "m1"}},
    "spec": {"networkInterfaces": {FIRST_MAC: {"dhcp": {"ip": "10.0.0.5"}}}, "storageDevices": ["/dev/vda"]},
}


OBSERVED = HARDWARE | {
    "status": {name: f"a {name}" for name in STATUS_FIELDS} | {"inventory": {"outOfBand": {"a": "b"}}}
}


POD = {"extra": {"authentication.kubernetes.io/pod-name": ["tinkedge-edge-abcde"]}}


@pytest.mark.parametrize(
    ("name", "user", "allowed"),
    [
        ("tinkedge-edge-abcde", POD, True),
        ("tinkedge-edge-fghij", POD, False),
        ("tinkedge-controller", POD, False),
        ("tinkedge-edge-abcde", {}, False),
        ("tinkedge-edge-abcde", {"extra": {}}, False),
        ("tinkedge-edge-abcde", {"extra": {"authentication.kubernetes.io/pod-name": []}}, False),
    ],
)
def test_edge_s_token_writes_the_lease_of_its_own_pod_alone(name, user, allowed):
    lease = {"metadata": {"name": name}, "spec": {"holderIdentity": "thief"}}
    assert (refusals("edge-peers", lease, None, user) == []) == allowed
    assert (refusals("edge-peers", lease, lease, user) == []) == allowed


def definition(file: str = "crds-metal3/baremetalhosts.yaml", **client: Any) -> Raw:
    """Return a CustomResourceDefinition with this conversion client."""
    (found,) = objects(file)
    webhook = {"clientConfig": {"caBundle": "Q0E=", **client}, "conversionReviewVersions": ["v1"]}
    found["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return found


SERVICE = {"namespace": "tinkedge", "name": "tinkedge-metal3-webhook", "port": 443, "path": "/convert"}
V1ALPHA1 = "crds/v1alpha1/hardware.yaml"
V1ALPHA1_SERVICE = {"namespace": "tinkedge", "name": "tinkedge-webhooks", "port": 443, "path": "/convert-v1alpha1"}


ATTACKS = {
    "webhook-registration": [
        lambda obj: obj["webhooks"][0]["rules"].append(SECRETS),
        lambda obj: obj["webhooks"][0]["rules"][0].update(resources=["*"]),
        lambda obj: obj["webhooks"].append({**obj["webhooks"][0], "name": "more.example", "rules": [SECRETS]}),
        lambda obj: obj["webhooks"].clear(),
        lambda obj: obj["webhooks"].__setitem__(1, {**obj["webhooks"][1], "name": "other.example"}),
        lambda obj: obj["webhooks"][0]["clientConfig"].update(url="https://192.0.2.1/"),
        lambda obj: obj["webhooks"][0]["clientConfig"]["service"].update(name="elsewhere"),
        lambda obj: obj["webhooks"][0].update(failurePolicy="Ignore"),
        lambda obj: obj["webhooks"][0].update(namespaceSelector={"matchLabels": {"a": "b"}}),
        lambda obj: obj["webhooks"][0].update(objectSelector={"matchLabels": {"a": "b"}}),
        lambda obj: obj["webhooks"][0].update(matchConditions=[{"name": "never", "expression": "false"}]),
        lambda obj: obj["webhooks"][0].update(timeoutSeconds=30),
        lambda obj: obj["webhooks"][0].update(sideEffects="Some"),
        lambda obj: obj["metadata"].update(finalizers=["example.com/stay"]),
        lambda obj: obj["metadata"].update(ownerReferences=[{"kind": "Pod", "name": "p", "uid": "1"}]),
        lambda obj: obj["metadata"].update(annotations={"cert-manager.io/inject-ca-from": "a/b"}),
        lambda obj: obj["metadata"].update(labels={}),
    ],
    "server-attributes": [
        lambda obj: obj["spec"]["networkInterfaces"].clear(),
        lambda obj: obj["spec"].update(instance={"userdata": "#!/bin/sh"}),
        lambda obj: obj["metadata"]["annotations"].update({"tinkerbell.org/agent-id": "m2"}),
        lambda obj: obj["metadata"]["annotations"].update({"tinkerbell.org/userdata-secret": "root"}),
        lambda obj: obj["metadata"]["annotations"].clear(),
        lambda obj: obj["metadata"].pop("annotations"),
        lambda obj: obj["metadata"]["labels"].update(site="ulm"),
        lambda obj: obj["metadata"].update(finalizers=["example.com/stay"]),
        lambda obj: obj["metadata"].update(ownerReferences=[{"kind": "Pod", "name": "p", "uid": "1"}]),
    ],
    "server-inventory": [
        *(lambda obj, name=name: obj["status"].update({name: {"forged": "x"}}) for name in STATUS_FIELDS[:-1]),
        *(lambda obj, name=name: obj["status"].pop(name) for name in STATUS_FIELDS),
        lambda obj: obj["status"]["inventory"].update(outOfBand={"architecture": "forged"}),
        lambda obj: obj["status"]["inventory"].pop("outOfBand"),
        lambda obj: obj.pop("status"),
    ],
    "bmc-netboot": [
        lambda obj: obj["spec"].clear(),
        lambda obj: obj["spec"].update(instance={"userdata": "#!/bin/sh"}),
        lambda obj: obj["spec"].update(storageDevices=["/dev/sda"]),
        lambda obj: obj["spec"].update(bmcRef={"name": "other"}),
        lambda obj: obj["spec"]["networkInterfaces"].clear(),
        lambda obj: obj["spec"]["networkInterfaces"].update({"52:54:00:00:00:02": {}}),
        lambda obj: obj["spec"]["networkInterfaces"][FIRST_MAC].clear(),
        lambda obj: obj["spec"]["networkInterfaces"][FIRST_MAC].update(disableDhcp=True),
        lambda obj: obj["spec"]["networkInterfaces"][FIRST_MAC]["dhcp"].update(ip="10.0.0.6"),
        lambda obj: obj["metadata"]["annotations"].update({"tinkerbell.org/userdata-secret": "root"}),
        lambda obj: obj["metadata"].pop("annotations"),
        lambda obj: obj["metadata"]["labels"].update(site="ulm"),
        lambda obj: obj["metadata"].update(finalizers=["example.com/stay"]),
        lambda obj: obj["metadata"].update(ownerReferences=[{"kind": "Pod", "name": "p", "uid": "1"}]),
    ],
    "metal3-webhook": [
        lambda obj: obj["spec"]["versions"].pop(),
        lambda obj: obj["spec"]["versions"][0].update(served=False),
        lambda obj: obj["spec"]["versions"][0]["schema"].clear(),
        lambda obj: obj["spec"].update(scope="Cluster"),
        lambda obj: obj["spec"].update(preserveUnknownFields=True),
        lambda obj: obj["spec"]["names"].update(plural="secrets"),
        lambda obj: obj["spec"]["conversion"].update(strategy="None"),
        lambda obj: obj["spec"]["conversion"]["webhook"].update(clientConfig={"url": "https://192.0.2.1/"}),
        lambda obj: obj["spec"]["conversion"]["webhook"]["clientConfig"]["service"].update(namespace="elsewhere"),
        lambda obj: obj["spec"]["conversion"]["webhook"]["clientConfig"]["service"].update(name="elsewhere"),
        lambda obj: obj["metadata"].update(finalizers=["example.com/stay"]),
    ],
}


ATTACKS["discovery"] = ATTACKS["bmc-netboot"]
ATTACKS["v1alpha1"] = [*ATTACKS["metal3-webhook"], lambda obj: obj["spec"]["versions"][1].update(storage=True)]


@pytest.mark.parametrize(("policy", "attack"), [(policy, each) for policy, all_ in ATTACKS.items() for each in all_])
def test_account_s_token_changes_nothing_else_of_its_object(policy, attack):
    old = {
        "webhook-registration": REGISTERED,
        "server-attributes": HARDWARE,
        "server-inventory": OBSERVED,
        "bmc-netboot": HARDWARE,
        "discovery": HARDWARE,
        "metal3-webhook": definition(service=SERVICE),
        "v1alpha1": definition(V1ALPHA1, service=V1ALPHA1_SERVICE),
    }[policy]
    assert refusals(policy, changed(old, attack), old) != []


def without_bundles() -> Raw:
    bare = copy.deepcopy(REGISTERED)
    for webhook in bare["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
    return bare


BUNDLE = configuration(ADDRESS, b"another", "Fail", (), "tinkedge-webhooks.tinkedge")
BARE: Raw = {"metadata": {"name": "m1"}, "spec": {}}


def reported(old: Raw) -> Raw:
    """Return a Hardware with the attributes that an agent reports."""
    attributes = {"tinkerbell.org/agent-attributes": "{}"}
    return changed(old, lambda obj: obj["metadata"].setdefault("annotations", {}).update(attributes))


def inventoried(old: Raw) -> Raw:
    """Return a Hardware with the inventory that an agent reports."""
    in_band = {"inBand": {"collectionMethod": "agent"}}
    return changed(old, lambda obj: obj.setdefault("status", {}).setdefault("inventory", {}).update(in_band))


def netbooting(**fields: bool) -> Raw:
    """Return a Hardware with these fields of its interface."""
    return changed(HARDWARE, lambda obj: obj["spec"]["networkInterfaces"][FIRST_MAC].update(fields))


@pytest.mark.parametrize(
    ("policy", "new", "old"),
    [
        ("webhook-registration", BUNDLE, REGISTERED),
        ("webhook-registration", BUNDLE, without_bundles()),
        ("server-attributes", reported(HARDWARE), HARDWARE),
        ("server-attributes", reported(BARE), BARE),
        ("server-inventory", inventoried(OBSERVED), OBSERVED),
        ("server-inventory", OBSERVED, inventoried(OBSERVED)),
        ("server-inventory", inventoried(HARDWARE), HARDWARE),
        ("server-inventory", inventoried(BARE), BARE),
        ("bmc-netboot", netbooting(disableNetboot=True), HARDWARE),
        ("bmc-netboot", netbooting(disableNetboot=False), netbooting(disableNetboot=True)),
        ("bmc-netboot", HARDWARE, netbooting(disableNetboot=True)),
        ("metal3-webhook", definition(service=SERVICE), objects("crds-metal3/baremetalhosts.yaml")[0]),
        ("v1alpha1", definition(V1ALPHA1, service=V1ALPHA1_SERVICE), objects(V1ALPHA1)[0]),
    ],
)
def test_account_s_token_writes_what_the_account_is_for(policy, new, old):
    assert refusals(policy, new, old) == []


# --- one source -------------------------------------------------------------------------------------------------------


def test_webhooks_of_the_chart_are_those_that_the_controller_expects():
    (made,) = [each for each in objects("webhooks.yaml") if each["kind"] == "ValidatingWebhookConfiguration"]
    expected = copy.deepcopy(REGISTERED["webhooks"])
    for webhook in expected:
        del webhook["clientConfig"]["caBundle"]
    assert made["webhooks"] == expected
    assert made["metadata"]["name"] == REGISTERED["metadata"]["name"]


def test_secret_for_the_authority_is_made_empty():
    """An account that may create Secrets could create one that holds another account's token."""
    names = {"webhooks.yaml": "tinkedge-webhooks-ca", "metal3-webhook.yaml": "tinkedge-metal3-webhook-ca"}
    for file, name in names.items():
        (secret,) = [each for each in objects(file) if each["kind"] == "Secret"]
        assert secret["metadata"]["name"] == name
        assert not secret.keys() & {"data", "stringData"}


DISCOVERED = changed(
    HARDWARE,
    lambda obj: obj["metadata"].update(
        labels={"tinkerbell.org/auto-discovered": "true"}, finalizers=["tinkerbell.org/discovery"]
    ),
)
APPROVED = changed(
    HARDWARE, lambda obj: obj["metadata"].update(annotations={"tinkerbell.org/discovered-as": "discovery-52"})
)


@pytest.mark.parametrize("policy", ["discovery", "bmc-netboot"])
@pytest.mark.parametrize("old", [DISCOVERED, APPROVED], ids=["discovered", "approved"])
def test_controller_changes_metadata_of_discovered_hardware_alone_and_no_spec_but_netboot(policy, old):
    relabelled = changed(old, lambda obj: obj["metadata"].update(labels={"tinkerbell.org/model": "R650"}))
    assert refusals(policy, relabelled, old) == []
    assert refusals(policy, changed(old, lambda obj: obj["metadata"].update(finalizers=[])), old) == []
    assert refusals(policy, changed(old, lambda obj: obj["metadata"].update(annotations={})), old) == []
    moved = changed(old, lambda obj: obj["spec"]["networkInterfaces"][FIRST_MAC]["dhcp"].update(ip="10.0.0.6"))
    assert refusals(policy, moved, old) != []
    owned = changed(old, lambda obj: obj["metadata"].update(ownerReferences=[{"kind": "Pod", "name": "p", "uid": "1"}]))
    assert refusals(policy, owned, old) != []


def test_controller_deletes_discovered_hardware_alone():
    gone: Raw = {}
    assert refusals("discovery-delete", gone, DISCOVERED) == []
    for old in (HARDWARE, APPROVED, {"metadata": {"name": "m1"}, "spec": {}}):
        assert refusals("discovery-delete", gone, old) != []


@pytest.mark.parametrize("listed", ["", ",only=listed"])
def test_edge_creates_the_hardware_of_discovered_machines_alone(listed):
    rule = read_rule(f"range=10.7.0.200-10.7.0.250/24,gateway=10.7.0.1,nameserver=10.7.0.1,osie=lab/hook{listed}")
    made = discovered_hardware(FIRST_MAC, rule, IPv4Address("10.7.0.200"))
    assert refusals("edge-discovery", made, None) == []
    for change in (
        lambda obj: obj["metadata"].update(name="web-1"),
        lambda obj: obj["metadata"].update(labels={}),
        lambda obj: obj["metadata"].update(finalizers=[]),
        lambda obj: obj["metadata"]["annotations"].update({"tinkerbell.org/agent-id": "web-1"}),
        lambda obj: obj["metadata"].update(ownerReferences=[{"kind": "Pod", "name": "p", "uid": "1"}]),
        lambda obj: obj["spec"].update(instance={"userdata": "#!/bin/sh"}),
        lambda obj: obj["spec"].update(kernelParams=["init=/bin/sh"]),
        lambda obj: obj["spec"].update(bmcRef={"name": "bmc1"}),
        lambda obj: obj["spec"]["networkInterfaces"].update({"52:54:00:00:00:02": {}}),
    ):
        assert refusals("edge-discovery", changed(made, change), None) != []


def test_edge_deletes_discovered_hardware_without_an_inventory_alone():
    made = discovered_hardware(
        FIRST_MAC, read_rule("range=10.7.0.200-10.7.0.250/24,osie=lab/hook"), IPv4Address("10.7.0.200")
    )
    made["metadata"]["generation"] = 1
    gone: Raw = {}
    assert refusals("edge-discovery-delete", gone, made) == []
    assert refusals("edge-discovery-delete", gone, made | {"status": {"state": "Netbooting"}}) == []
    for change in (
        lambda obj: obj["metadata"].update(name="web-1"),
        lambda obj: obj["metadata"].update(labels={}),
        lambda obj: obj["metadata"]["labels"].update({"rack": "7"}),
        lambda obj: obj["metadata"]["annotations"].update({"tinkerbell.org/approve": "web-1"}),
        lambda obj: obj.update(status={"inventory": {"inBand": {}}}),
    ):
        assert refusals("edge-discovery-delete", gone, changed(made, change)) != []
