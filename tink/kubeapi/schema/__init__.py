"""CustomResourceDefinitions: the check of a definition, and the checks that it defines for objects. No I/O.

    definition -> compile_definition -> Checker -> check(object) -> completed object, errors, unknown fields

- `definition` checks a definition, `definition_schemas` the schemas in it
- `structural` compiles a schema (with `formats`), `rules` its CEL rules (with `declarations`), `checker` joins them
- `meta` and `structs` handle what Kubernetes has Go types for: metadata and built-in resources
- `shapes` has helpers to write schemas, `field_errors` Kubernetes' error messages, `jsonpath` printer columns,
  `webhooks` the address of a webhook and its match conditions

Other packages import `definition`, `field_errors`, `meta`, `shapes` and `structs` as modules (`field_errors.required`)
and everything else from here. The behaviour is that of k8s.io/apiextensions-apiserver, recorded from a kube-apiserver.
"""

from tink.kubeapi.schema.checker import Checker, checkers, compile_definition, complete_by_schema, read_metadata
from tink.kubeapi.schema.declarations import field_path
from tink.kubeapi.schema.field_errors import (
    CompiledSchema,
    FieldError,
    Path,
    TooMuchAddedError,
    WalkResult,
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
    "Path",
    "Raw",
    "TooMuchAddedError",
    "Validations",
    "WalkResult",
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
