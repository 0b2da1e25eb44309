"""Whether a CustomResourceDefinition is right, with the words of Kubernetes.

`typed` reads what a client sent as Kubernetes' own types (unknown fields go, wrong types are refused). `spec` fills in
what was left out and checks names, versions, columns and the rest, `webhooks` the conversion, `structural` the shape of
schemas, `defaults` their defaults, `keywords` their keywords and CEL rules. All pure.

The behaviour is that of k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation.
"""

from tink.kubeapi.schema.definition.formats import warnings
from tink.kubeapi.schema.definition.spec import approval, check, fill_in, is_true, protected
from tink.kubeapi.schema.definition.typed import SCHEMA, read
from tink.kubeapi.schema.definition.webhooks import bundle_problem

__all__ = ["SCHEMA", "approval", "bundle_problem", "check", "fill_in", "is_true", "protected", "read", "warnings"]
