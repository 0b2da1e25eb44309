"""What a CustomResourceDefinition says of objects, and how that is enforced: no server, no files, no network.

    definition -> compile_definition -> Checker -> check(object) -> completed object, errors, unknown fields

`definition/` says whether a definition is right, `structural/` compiles its schemas, `validations/` its CEL rules
(`cel`), `checker` puts them together. Beside them stands what a server of the API needs to speak of objects:
`meta` and `structs` (what Kubernetes has types of its own for), `shapes` (how their schemas are written),
`field_errors` (its words), `jsonpath` (columns), `client_config` (where a webhook is), `values`. Of these `definition`,
`field_errors`, `meta`, `shapes` and `structs` are used by their own names (`field_errors.required`), the others through
this door.

The behaviour is that of k8s.io/apiextensions-apiserver, recorded from a real kube-apiserver.
"""

from tink.kubeapi.schema.checker import Checker, checkers, compile_definition, complete_by_schema, read_metadata
from tink.kubeapi.schema.declarations import field_path
from tink.kubeapi.schema.field_errors import (
    CompiledSchema,
    FieldError,
    Outcome,
    Path,
    TooMuchAddedError,
    invalid_whole,
    quote,
)
from tink.kubeapi.schema.formats import format_warnings
from tink.kubeapi.schema.jsonpath import Byte, JSONPathError, compile_path
from tink.kubeapi.schema.rules import Validations, ratcheted
from tink.kubeapi.schema.shapes import Raw, deep_copy
from tink.kubeapi.schema.structs import MistypedError
from tink.kubeapi.schema.structural import compile_schema, mark, root_schema
from tink.kubeapi.schema.webhooks import (
    REVIEW_VERSIONS,
    ClientConfig,
    ConditionError,
    Conditions,
    bundle_problem,
    check_client,
    check_review_versions,
    compile_condition,
)

__all__ = [
    "REVIEW_VERSIONS",
    "Byte",
    "Checker",
    "ClientConfig",
    "CompiledSchema",
    "ConditionError",
    "Conditions",
    "FieldError",
    "JSONPathError",
    "MistypedError",
    "Outcome",
    "Path",
    "Raw",
    "TooMuchAddedError",
    "Validations",
    "bundle_problem",
    "check_client",
    "check_review_versions",
    "checkers",
    "compile_condition",
    "compile_definition",
    "compile_path",
    "compile_schema",
    "complete_by_schema",
    "deep_copy",
    "field_path",
    "format_warnings",
    "invalid_whole",
    "mark",
    "quote",
    "ratcheted",
    "read_metadata",
    "root_schema",
]
