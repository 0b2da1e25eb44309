"""Whether a CustomResourceDefinition is right, with the words of Kubernetes.

`typed` reads what a client sent as Kubernetes' Go types would (unknown fields go, wrong types are refused), and writes
values as those types look in messages. `spec` then checks names, versions, columns and the rest, `webhooks` the
conversion, `structural` (beside this package) the shape of schemas, `defaults` their defaults, `keywords` their
keywords and CEL rules. All pure; `definitions` calls them.

The behaviour is that of k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation.
"""
