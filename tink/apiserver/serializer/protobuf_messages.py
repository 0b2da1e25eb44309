"""The messages of Kubernetes' protobuf, for the built-in kinds: which field number is which field of the JSON.

One line for each message, in a notation close to the `generated.proto` files of k8s.io/api and k8s.io/apimachinery
from which the numbers are: `<number> <field> <type>`, where the type is a message or one of

    string int bool bytes     as in protobuf; bytes are base64 in JSON
    time micro                seconds and nanoseconds; RFC 3339 text with no or six decimals in JSON
    map bytesmap listmap      string to string, to bytes, to a list of strings
    json                      bytes that hold JSON

with `*` after it when it is repeated, `?` when an empty value differs from none (a pointer in Go), and `+` when the
fields of the message stand beside the others in JSON. Data only; `protobuf` reads and writes by it.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_ENVELOPE = 16
"""Deepest nesting of messages."""

_MESSAGES = """
Unknown: 1 typeMeta TypeMeta, 2 raw raw, 3 contentEncoding string, 4 contentType string
TypeMeta: 1 apiVersion string, 2 kind string

ObjectMeta: 1 name string, 2 generateName string, 3 namespace string, 4 selfLink string, 5 uid string,
  6 resourceVersion string, 7 generation int, 8 creationTimestamp time, 9 deletionTimestamp time,
  10 deletionGracePeriodSeconds int?, 11 labels map, 12 annotations map, 13 ownerReferences OwnerReference*,
  14 finalizers string*, 17 managedFields ManagedFieldsEntry*
OwnerReference: 1 kind string, 3 name string, 4 uid string, 5 apiVersion string, 6 controller bool?,
  7 blockOwnerDeletion bool?
ManagedFieldsEntry: 1 manager string, 2 operation string, 3 apiVersion string, 4 time time, 6 fieldsType string,
  7 fieldsV1 FieldsV1+, 8 subresource string
FieldsV1: 1 fieldsV1 json
ListMeta: 1 selfLink string, 2 resourceVersion string, 3 continue string, 4 remainingItemCount int?
LabelSelector: 1 matchLabels map, 2 matchExpressions Requirement*
Requirement: 1 key string, 2 operator string, 3 values string*
DeleteOptions: 1 gracePeriodSeconds int?, 2 preconditions Preconditions, 3 orphanDependents bool?,
  4 propagationPolicy string?, 5 dryRun string*, 6 ignoreStoreReadErrorWithClusterBreakingPotential bool?
Preconditions: 1 uid string?, 2 resourceVersion string?
Status: 1 metadata ListMeta, 2 status string, 3 message string, 4 reason string, 5 details StatusDetails, 6 code int
StatusDetails: 1 name string, 2 group string, 3 kind string, 4 causes StatusCause*, 5 retryAfterSeconds int,
  6 uid string
StatusCause: 1 reason string, 2 message string, 3 field string

Namespace: 1 metadata ObjectMeta, 2 spec NamespaceSpec, 3 status NamespaceStatus
NamespaceSpec: 1 finalizers string*
NamespaceStatus: 1 phase string, 2 conditions NamespaceCondition*
NamespaceCondition: 1 type string, 2 status string, 4 lastTransitionTime time, 5 reason string, 6 message string
ConfigMap: 1 metadata ObjectMeta, 2 data map, 3 binaryData bytesmap, 4 immutable bool?
Secret: 1 metadata ObjectMeta, 2 data bytesmap, 3 type string, 4 stringData map, 5 immutable bool?
Event: 1 metadata ObjectMeta, 2 involvedObject ObjectReference, 3 reason string, 4 message string, 5 source EventSource,
  6 firstTimestamp time, 7 lastTimestamp time, 8 count int, 9 type string, 10 eventTime micro, 11 series EventSeries,
  12 action string, 13 related ObjectReference, 14 reportingComponent string, 15 reportingInstance string
EventSeries: 1 count int, 2 lastObservedTime micro
EventSource: 1 component string, 2 host string
ObjectReference: 1 kind string, 2 namespace string, 3 name string, 4 uid string, 5 apiVersion string,
  6 resourceVersion string, 7 fieldPath string
NewEvent: 1 metadata ObjectMeta, 2 eventTime micro, 3 series EventSeries, 4 reportingController string,
  5 reportingInstance string, 6 action string, 7 reason string, 8 regarding ObjectReference, 9 related ObjectReference,
  10 note string, 11 type string, 12 deprecatedSource EventSource, 13 deprecatedFirstTimestamp time,
  14 deprecatedLastTimestamp time, 15 deprecatedCount int
Lease: 1 metadata ObjectMeta, 2 spec LeaseSpec
LeaseSpec: 1 holderIdentity string?, 2 leaseDurationSeconds int?, 3 acquireTime micro, 4 renewTime micro,
  5 leaseTransitions int?, 6 strategy string?, 7 preferredHolder string?

ValidatingWebhookConfiguration: 1 metadata ObjectMeta, 2 webhooks ValidatingWebhook*
ValidatingWebhook: 1 name string, 2 clientConfig ClientConfig, 3 rules RuleWithOperations*, 4 failurePolicy string?,
  5 namespaceSelector LabelSelector, 6 sideEffects string?, 7 timeoutSeconds int?, 8 admissionReviewVersions string*,
  9 matchPolicy string?, 10 objectSelector LabelSelector, 11 matchConditions MatchCondition*
MutatingWebhookConfiguration: 1 metadata ObjectMeta, 2 webhooks MutatingWebhook*
MutatingWebhook: 1 name string, 2 clientConfig ClientConfig, 3 rules RuleWithOperations*, 4 failurePolicy string?,
  5 namespaceSelector LabelSelector, 6 sideEffects string?, 7 timeoutSeconds int?, 8 admissionReviewVersions string*,
  9 matchPolicy string?, 10 reinvocationPolicy string?, 11 objectSelector LabelSelector,
  12 matchConditions MatchCondition*
ClientConfig: 1 service ServiceReference, 2 caBundle bytes, 3 url string?
ServiceReference: 1 namespace string, 2 name string, 3 path string?, 4 port int?
RuleWithOperations: 1 operations string*, 2 rule Rule+
Rule: 1 apiGroups string*, 2 apiVersions string*, 3 resources string*, 4 scope string?
MatchCondition: 1 name string, 2 expression string

SelfSubjectAccessReview: 1 metadata ObjectMeta, 2 spec AccessSpec, 3 status AccessStatus
SubjectAccessReview: 1 metadata ObjectMeta, 2 spec AccessSpec, 3 status AccessStatus
LocalSubjectAccessReview: 1 metadata ObjectMeta, 2 spec AccessSpec, 3 status AccessStatus
AccessSpec: 1 resourceAttributes ResourceAttributes, 2 nonResourceAttributes NonResourceAttributes, 3 user string,
  4 groups string*, 5 extra listmap, 6 uid string
AccessStatus: 1 allowed bool, 2 reason string, 3 evaluationError string, 4 denied bool
ResourceAttributes: 1 namespace string, 2 verb string, 3 group string, 4 version string, 5 resource string,
  6 subresource string, 7 name string, 8 fieldSelector Selector, 9 labelSelector Selector
NonResourceAttributes: 1 path string, 2 verb string
Selector: 1 rawSelector string, 2 requirements Requirement*
SelfSubjectRulesReview: 1 metadata ObjectMeta, 2 spec RulesSpec, 3 status RulesStatus
RulesSpec: 1 namespace string
RulesStatus: 1 resourceRules ResourceRule*, 2 nonResourceRules NonResourceRule*, 3 incomplete bool,
  4 evaluationError string
ResourceRule: 1 verbs string*, 2 apiGroups string*, 3 resources string*, 4 resourceNames string*
NonResourceRule: 1 verbs string*, 2 nonResourceURLs string*
SelfSubjectReview: 1 metadata ObjectMeta, 2 status SelfStatus
SelfStatus: 1 userInfo UserInfo
UserInfo: 1 username string, 2 uid string, 3 groups string*, 4 extra listmap
TokenReview: 1 metadata ObjectMeta, 2 spec TokenSpec, 3 status TokenStatus
TokenSpec: 1 token string, 2 audiences string*
TokenStatus: 1 authenticated bool, 2 user UserInfo, 3 error string, 4 audiences string*

MapEntry: 1 key string, 2 value raw
Time: 1 seconds int, 2 nanos int
Texts: 1 items string*
"""
_GROUPS = {
    "v1": ("Namespace", "ConfigMap", "Secret", "Event", "Status"),
    "coordination.k8s.io/v1": ("Lease",),
    "admissionregistration.k8s.io/v1": ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
    "authorization.k8s.io/v1": (
        "SelfSubjectAccessReview",
        "SubjectAccessReview",
        "LocalSubjectAccessReview",
        "SelfSubjectRulesReview",
    ),
    "authentication.k8s.io/v1": ("SelfSubjectReview", "TokenReview"),
}
SCALARS = frozenset(
    ("string", "int", "bool", "bytes", "time", "micro", "map", "bytesmap", "listmap", "json", "raw"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message: its name in JSON and its type (one of SCALARS, or a message)."""

    number: int
    name: str
    type: str
    repeated: bool = False
    pointer: bool = False
    inline: bool = False


def _field(text: str) -> Field:
    number, name, kind = text.split()
    return Field(int(number), name, kind.rstrip("*?+"), kind.endswith("*"), kind.endswith("?"), kind.endswith("+"))


def _parse(text: str) -> dict[str, tuple[Field, ...]]:
    joined = text.replace("\n  ", " ")
    lines = (line.partition(": ") for line in joined.splitlines() if line)
    return {name: tuple(_field(field) for field in fields.split(",")) for name, _, fields in lines}


MESSAGES = _parse(_MESSAGES)
"""Message -> its fields."""
BY_NUMBER = {name: {field.number: field for field in fields} for name, fields in MESSAGES.items()}
"""Message -> number -> field."""
KINDS = {(version, kind): kind for version, kinds in _GROUPS.items() for kind in kinds} | {
    ("events.k8s.io/v1", "Event"): "NewEvent"
}
"""apiVersion and kind -> message. DeleteOptions are of every group and version."""
