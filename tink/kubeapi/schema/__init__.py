"""CustomResourceDefinitions: the check of a definition, and the checks that it defines for objects. No I/O.

    definition -> compile_definition -> Checker -> check(object) -> completed object, errors, unknown fields

- `definition` checks a definition, `definition_schemas` the schemas in it
- `structural` compiles a schema (with `formats`), `rules` its CEL rules (with `declarations`), `checker` joins them
- `meta` and `structs` handle what Kubernetes has Go types for: metadata and built-in resources
- `shapes` has helpers to write schemas, `field_errors` Kubernetes' error messages, `jsonpath` printer columns,
  `webhooks` the address of a webhook and its match conditions

The behaviour is that of k8s.io/apiextensions-apiserver, recorded from a kube-apiserver.
"""
