"""What a CustomResourceDefinition says of objects, and how that is enforced: no server, no files, no network.

    definition -> compile_definition -> Checker -> check(object) -> completed object, errors, unknown fields

`definition/` says whether a definition is right, `structural/` compiles its schemas to one walk over an object,
`validations/` its CEL rules (`tink.cel`), `checker` puts them together. Beside them stands what a server of the API
needs to speak of objects: `meta` and `structs` (what Kubernetes reads into Go types), `field_errors` and `golang` (its
words), `jsonpath` (columns), `client_config` (where a webhook is), `values`.

The behaviour is that of k8s.io/apiextensions-apiserver, recorded from a real kube-apiserver (`tests/unit/schema`).
"""

from tink.schema.checker import Checked, Checker, DefinitionError, compile_definition
from tink.schema.field_errors import FieldError

__all__ = ["Checked", "Checker", "DefinitionError", "FieldError", "compile_definition"]
