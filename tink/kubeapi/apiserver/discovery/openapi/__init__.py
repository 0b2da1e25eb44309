"""OpenAPI: what `kubectl explain` prints, and what `kubectl apply` reads before it sends.

From the registry's schemas: `publish` makes of each the schemas that clients read (`common` knows what `types.yaml`
says of Kubernetes' own types), `paths` lists what can be asked. `service` puts documents together and keeps them:
version 3 as it is, version 2 through `swagger`, and through `gnostic` in the form of protobuf that kubectl up to 1.26
needs. kubectl looks for three things: types with `x-kubernetes-group-version-kind`, whether the PATCH of a path takes
`fieldValidation` (then the server validates), and whether it takes strategic merge patches.
"""

from tink.kubeapi.apiserver.discovery.openapi.service import OpenAPI, Text, url

__all__ = ["OpenAPI", "Text", "url"]
