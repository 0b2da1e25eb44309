"""The schemas of the built-in types: what Kubernetes' own types hold (k8s.io/api/core/v1, coordination/v1).

What the types and fields are for stands in `discovery/openapi/types.yaml`.
"""

from __future__ import annotations

from tink.kubeapi.schema.shapes import ANY, BYTES, FLAG, INT32, TEXT, TIME, array, mapping, same, struct, texts

_REFERENCE = struct(
    texts("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"),
    **{"x-kubernetes-map-type": "atomic"},
)
NAMESPACE = struct(
    {
        "spec": struct({"finalizers": array(TEXT)}),
        "status": struct(
            {
                "phase": {"type": "string", "enum": ["Active", "Terminating"]},
                "conditions": array(ANY),
            }
        ),
    }
)
CONFIG_MAP = struct({"data": mapping(TEXT), "binaryData": mapping(BYTES), "immutable": FLAG})
SECRET = struct({"data": mapping(BYTES), "stringData": mapping(TEXT), "immutable": FLAG, "type": TEXT})
EVENT = struct(
    {
        **texts("action", "message", "reason", "reportingComponent", "reportingInstance", "type"),
        **same(TIME, "eventTime", "firstTimestamp", "lastTimestamp"),
        **same(_REFERENCE, "involvedObject", "related"),
        "count": INT32,
        "series": struct({"count": INT32, "lastObservedTime": TIME}),
        "source": struct(texts("component", "host")),
    }
)
LEASE = struct(
    {
        "spec": struct(
            {
                **same(TIME, "acquireTime", "renewTime"),
                **same(INT32, "leaseDurationSeconds", "leaseTransitions"),
                **texts("holderIdentity", "preferredHolder", "strategy"),
            }
        )
    }
)
