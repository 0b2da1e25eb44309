"""x-kubernetes-validations: the CEL rules of a structural schema, compiled once and checked on every write.

`declarations` says which CEL type a schema is, `rule` compiles one rule, `tree` puts the rules of a schema into a tree
that is walked beside the object, and `correlation` finds what a value was before an update: for `oldSelf`, and for
ratcheting, by which an update is not refused for what it leaves as it was. The rules
are compiled when a definition is written or read, and checked on every write.

The behaviour is that of k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel.
"""

from tink.kubeapi.schema.validations.correlation import ratcheted
from tink.kubeapi.schema.validations.declarations import declare, embedded, escaped
from tink.kubeapi.schema.validations.paths import FieldPathError, field_path
from tink.kubeapi.schema.validations.rule import OBJECT_BUDGET, Rule, compile_rule
from tink.kubeapi.schema.validations.tree import Validations, compile_at, compile_rules

__all__ = [
    "OBJECT_BUDGET",
    "FieldPathError",
    "Rule",
    "Validations",
    "compile_at",
    "compile_rule",
    "compile_rules",
    "declare",
    "embedded",
    "escaped",
    "field_path",
    "ratcheted",
]
