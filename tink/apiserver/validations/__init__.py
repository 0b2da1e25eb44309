"""x-kubernetes-validations: the CEL rules of a structural schema, compiled once and checked on every write.

`declarations` says which CEL type a schema is, `rule` compiles one rule, `tree` puts the rules of a schema into a tree
that is walked beside the object, and `correlation` finds what a value was before an update: for `oldSelf`, and for
ratcheting, by which an update is not refused for what it leaves as it was. `definitions` compiles the rules when a
CustomResourceDefinition is written or read; `verbs` checks them.

The behaviour is that of k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel.
"""

from __future__ import annotations

from tink.apiserver.validations.correlation import ratcheted
from tink.apiserver.validations.tree import Validations, compile_rules

__all__ = ["Validations", "compile_rules", "ratcheted"]
