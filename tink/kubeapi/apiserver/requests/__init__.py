"""A request, read: what its path names (`target`), its options and selectors, its body, and what its client accepts.

Pure: from the parts of an HTTP request to values, or to a `StatusError`. Everything that serves requests, and every
controller that makes some of its own, speaks in these values.
"""

from tink.kubeapi.apiserver.requests.body import (
    MAX_BODY,
    MAX_GROWN_VALUES,
    MAX_VALUES,
    Body,
    decode,
    decode_patch,
    not_an_object,
    values_in,
)
from tink.kubeapi.apiserver.requests.media_types import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    PROTOBUF,
    STRATEGIC_PATCH,
    YAML,
)
from tink.kubeapi.apiserver.requests.negotiation import (
    STREAMS,
    Accepted,
    Form,
    clauses,
    discovery_form,
    negotiate,
    wants_gzip,
)
from tink.kubeapi.apiserver.requests.options import (
    DeleteOptions,
    ListOptions,
    OptionsKind,
    WriteOptions,
    parse_bool,
    parse_version,
)
from tink.kubeapi.apiserver.requests.selectors import (
    Labels,
    Match,
    labels_of,
    match_fields,
    parse_fields,
    parse_labels,
    requirement,
)
from tink.kubeapi.apiserver.requests.target import Target, parse_path

__all__ = [
    "APPLY_PATCH",
    "JSON",
    "JSON_PATCH",
    "MAX_BODY",
    "MAX_GROWN_VALUES",
    "MAX_VALUES",
    "MERGE_PATCH",
    "PROTOBUF",
    "STRATEGIC_PATCH",
    "STREAMS",
    "YAML",
    "Accepted",
    "Body",
    "DeleteOptions",
    "Form",
    "Labels",
    "ListOptions",
    "Match",
    "OptionsKind",
    "Target",
    "WriteOptions",
    "clauses",
    "decode",
    "decode_patch",
    "discovery_form",
    "labels_of",
    "match_fields",
    "negotiate",
    "not_an_object",
    "parse_bool",
    "parse_fields",
    "parse_labels",
    "parse_path",
    "parse_version",
    "requirement",
    "values_in",
    "wants_gzip",
]
