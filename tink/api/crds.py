"""The CustomResourceDefinitions, generated from the pydantic models in `tink.api.v1alpha2`, `v1alpha1` and `bmc`.

`tinkedge crds` and `tinkedge crds --bmc` print them, `deploy/crds/` and `deploy/crds/bmc/` hold them for
`kubectl apply -f`, and `tinkedge up` applies them to the embedded API when it starts. The printer columns are what an
operator sees in `kubectl get`; their JSONPaths follow the rule of apiextensions.k8s.io/v1, where a column shows the
first result only, so no column points into a map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import yaml
from pydantic import BaseModel

from tink.api.schema import RULES, Schema, structural
from tink.api.v1alpha2 import GROUP, OSIE, UNPREPARED, VERSION, Hardware, Raw, Template, Workflow, WorkflowState

CATEGORY = "tinkerbell"

_API_VERSION: Schema = {
    "type": "string",
    "description": "APIVersion defines the versioned schema of this representation of an object. Servers should "
    "convert recognized schemas to the latest internal value, and may reject unrecognized values.",
}
_KIND: Schema = {
    "type": "string",
    "description": "Kind is a string value representing the REST resource this object represents. Servers may infer "
    "this from the endpoint the client submits requests to. Cannot be updated. In CamelCase.",
}


@dataclass(frozen=True)
class Column:
    """One column of `kubectl get`. Priority 0 is always shown, 1 only with `-o wide`."""

    name: str
    path: str
    description: str
    type: str = "string"
    priority: int = 0

    def entry(self) -> Raw:
        """Return the column as it is written in a CustomResourceDefinition."""
        entry: Raw = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
        }
        if self.priority:
            entry["priority"] = self.priority
        return entry


AGE = Column("Age", ".metadata.creationTimestamp", "Time since the object was created.", type="date")


@dataclass(frozen=True)
class Version:
    """The version of a definition.

    `selectable`: the paths that `kubectl get --field-selector` accepts (Kubernetes 1.31 and later; older ones ignore
    them). `status`: the status is a subresource. `storage`: objects are stored in this version. `group` is that of the
    definition. Without columns, Kubernetes shows the age.
    """

    model: type[BaseModel]
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()
    status: bool = False
    first_status: Raw | None = None
    """The status of an object until a component writes one: `kubectl get` shows it."""
    group: str = GROUP
    name: str = VERSION
    storage: bool = True

    @property
    def kind(self) -> str:
        """The kind of the objects."""
        return str(self.model.model_fields["kind"].default)

    def entry(self) -> Raw:
        """Return the version as it is written in a CustomResourceDefinition."""
        entry: Raw = {"name": self.name, "served": True, "storage": self.storage}
        if self.columns:
            entry["additionalPrinterColumns"] = [column.entry() for column in self.columns]
        schema = _object_schema(self.model)
        if self.first_status is not None:
            schema["properties"]["status"]["default"] = deepcopy(self.first_status)
        entry["schema"] = {"openAPIV3Schema": schema}
        if self.selectable:
            entry["selectableFields"] = [{"jsonPath": path} for path in self.selectable]
        if self.status:
            entry["subresources"] = {"status": {}}
        return entry


_HARDWARE = Version(
    Hardware,
    (
        Column("State", ".status.state", "The phase of the machine. Empty: it has never sent a packet."),
        Column("Boot", ".status.bootProblem", "The reason why the machine does not boot. Empty: nothing is wrong."),
        Column("IP", ".status.ip", "Address of the interface that sent the last packet, or of the first interface."),
        Column("MAC", ".status.mac", "MAC address of that interface."),
        Column("OSIE", ".spec.osie.name", "The OSIE that the machine netboots."),
        Column("Since", ".status.stateSince", "Time since its state changed.", type="date", priority=1),
        Column(
            "Message",
            '.status.conditions[?(@.type=="BootProblem")].message',
            "Why the machine does not boot, in a sentence.",
            priority=1,
        ),
        Column("Power", ".status.power", "State of the machine's power, as its BMC reported it last.", priority=1),
        Column("BMC", ".spec.bmcRef.name", "The Machine whose BMC controls its power.", priority=1),
        Column(
            "Conflict",
            '.status.conditions[?(@.type=="AddressConflict")].status',
            "Whether another host uses one of its addresses.",
            priority=1,
        ),
        AGE,
    ),
    (".spec.osie.name", ".spec.bmcRef.name"),
    status=True,
    # `kubectl wait --for=condition=AddressConflict=False` waits for a condition that exists.
    first_status={
        "conditions": [
            {
                "type": "AddressConflict",
                "status": "False",
                "reason": "NotDeclined",
                "message": "no machine has declined its address",
            }
        ]
    },
)
_OSIE = Version(
    OSIE,
    (
        Column("Kernel", ".spec.kernelUrl", "URL of the kernel."),
        Column("Initrd", ".spec.initrdUrl", "URL of the initrd.", priority=1),
        AGE,
    ),
)
_TEMPLATE = Version(
    Template, (Column("First Action", ".spec.actions[0].name", "Name of the first action.", priority=1), AGE)
)
_WORKFLOW = Version(
    Workflow,
    (
        Column("State", ".status.state", "Where the Workflow is."),
        Column("Action", ".status.currentAction", "The action that runs now, or that ran last."),
        Column("Hardware", ".spec.hardwareRef.name", "The Hardware that the Workflow executes on."),
        Column("Template", ".spec.templateRef.name", "The Template that gives the actions."),
        Column("Message", ".status.message", "Where the Workflow is, or why it ended."),
        Column("Started", ".status.startedAt", "Time since the first action started.", type="date", priority=1),
        AGE,
    ),
    (".spec.hardwareRef.name", ".spec.templateRef.name", ".status.state"),
    status=True,
    first_status={"state": WorkflowState.PENDING.value, "message": UNPREPARED},
)


def generate(*, serve_v1alpha1: bool = False) -> list[Raw]:
    """Return the CustomResourceDefinitions (apiextensions.k8s.io/v1) of Hardware, OSIE, Template and Workflow.

    With `serve_v1alpha1`, Hardware, Template and Workflow are also served as Tinkerbell's v1alpha1, and stored as
    v1alpha2. The caller has to add `spec.conversion`, because the strategy None would lose all fields. WorkflowRuleSet,
    which has no v1alpha2, is added. Equal models give the same result, byte for byte. The caller may change it.
    """
    older = _older_versions() if serve_v1alpha1 else {}
    definitions = [
        _definition("hardware", ["hw"], _HARDWARE, *older.get("Hardware", ()), labels=_MOVED if serve_v1alpha1 else {}),
        _definition("osies", [], _OSIE),
        _definition("templates", ["tpl"], _TEMPLATE, *older.get("Template", ())),
        _definition("workflows", ["wf"], _WORKFLOW, *older.get("Workflow", ())),
    ]
    if serve_v1alpha1:
        definitions.append(_definition("workflowrulesets", ["wrs"], *older["WorkflowRuleSet"]))
    return definitions


def _older_versions() -> dict[str, tuple[Version]]:
    """Return the versions v1alpha1 by kind, with upstream's columns (tinkerbell/tinkerbell, crd/bases/v1alpha1)."""
    from tink.api import v1alpha1  # only an API that serves v1alpha1 needs it

    served = partial(Version, status=True, name=v1alpha1.VERSION, storage=False)
    state = Column("State", ".status.state", "State of the object.")
    workflow = (
        Column("Template", ".spec.templateRef", "Name of the Template."),
        state,
        Column("Task", ".status.currentState.taskName", "Name of the present task.", priority=1),
        Column("Action", ".status.currentState.actionName", "Name of the present action."),
        Column("Agent", ".status.currentState.agentID", "Identifier of the agent."),
        Column("Hardware", ".spec.hardwareRef", "Name of the Hardware."),
        Column("Template-Rendering", ".status.templateRendering", "Result of the rendering.", priority=1),
    )
    versions = (
        served(v1alpha1.OldHardware, (state,)),
        served(v1alpha1.OldTemplate, (state,)),
        served(v1alpha1.OldWorkflow, workflow),
        served(v1alpha1.WorkflowRuleSet, (), storage=True),
    )
    return {version.kind: (version,) for version in versions}


_MOVED: Mapping[str, str] = {"clusterctl.cluster.x-k8s.io": "", "clusterctl.cluster.x-k8s.io/move": ""}
"""Labels of a definition whose objects `clusterctl move` takes with it."""


def generate_bmc() -> list[Raw]:
    """Return the CustomResourceDefinitions of Machine, Job and Task (`bmc.tinkerbell.org/v1alpha1`).

    Names, short names and labels are Rufio's. Equal models give the same result, byte for byte. The caller may change
    it.
    """
    from tink.api import bmc  # only an embedded API needs it, and the start of an edge does not wait for it

    served = partial(Version, status=True, group=bmc.GROUP, name=bmc.VERSION)
    machine = served(
        bmc.Machine,
        (
            Column("Power", ".status.powerState", "State of the machine's power."),
            Column("Contactable", f"{_CONTACTABLE}.status", "Whether the BMC answers and accepts the password."),
            Column("Host", ".spec.connection.host", "Address of the BMC.", priority=1),
            Column("Message", f"{_CONTACTABLE}.message", "Why the BMC is not contactable.", priority=1),
            AGE,
        ),
    )
    job = served(
        bmc.Job,
        (
            Column("State", f"{_LAST_CONDITION}.type", "Running, Completed or Failed. Empty: it has not begun."),
            Column("Machine", ".spec.machineRef.name", "The Machine whose BMC executes the tasks."),
            Column("Message", f"{_LAST_CONDITION}.message", "Why the Job failed."),
            Column("Started", ".status.startTime", "Time since the Job began.", type="date", priority=1),
            AGE,
        ),
    )
    task = served(
        bmc.Task,
        (
            Column("State", f"{_LAST_CONDITION}.type", "Completed or Failed. Empty: it has not ended."),
            Column("Action", ".spec.task", "The action, as JSON."),
            Column("Message", f"{_LAST_CONDITION}.message", "Why the Task failed."),
            Column("Stage", ".status.stage", "The part of the action that is done.", priority=1),
            Column("Host", ".spec.connection.host", "Address of the BMC.", priority=1),
            Column("Started", ".status.startTime", "Time since the Task began.", type="date", priority=1),
            AGE,
        ),
    )
    return [
        _definition("machines", [], machine, labels=_MOVED),
        _definition("jobs", ["j"], job),
        _definition("tasks", ["t"], task),
    ]


_CONTACTABLE = '.status.conditions[?(@.type=="Contactable")]'
_LAST_CONDITION = ".status.conditions[-1:]"
"""The newest condition of a Job or Task is the last one, and so the present state: Running, Completed or Failed."""


def to_yaml(definitions: list[Raw]) -> str:
    """Return definitions as a YAML stream, one document each, as in `deploy/crds/`."""
    return "".join(
        "---\n" + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
        for definition in definitions
    )


class _Dumper(yaml.SafeDumper):
    """Never writes anchors, because readers should not have to follow them. Generated schemas share parts."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _definition(
    plural: str, short_names: Sequence[str], *versions: Version, labels: Mapping[str, str] | None = None
) -> Raw:
    """Return the CustomResourceDefinition of a namespaced kind with these versions. Raises SchemaError."""
    kind, group = versions[0].kind, versions[0].group
    names: Raw = {"categories": [CATEGORY], "kind": kind, "listKind": f"{kind}List"}
    names |= {"plural": plural, "singular": kind.lower()}
    if short_names:
        names["shortNames"] = list(short_names)
    metadata: Raw = {"name": f"{plural}.{group}"}
    if labels:
        metadata["labels"] = dict(labels)
    entries = [version.entry() for version in versions]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": entries},
    }


def _object_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a whole object: the model's spec and status, and the fields that every object has."""
    source = structural(model)
    properties = source["properties"]
    schema: Schema = {
        "description": source["description"],
        "type": "object",
        "properties": {"apiVersion": _API_VERSION, "kind": _KIND, "metadata": {"type": "object"}},
    }
    # Our models have spec and status only. Any other field at the root would be a mistake in the model.
    for part in ("spec", "status"):
        if part in properties:
            schema["properties"][part] = properties[part]
    if "spec" in source.get("required", ()):
        schema["required"] = ["spec"]
    if RULES in source:
        schema[RULES] = source[RULES]
    return schema
