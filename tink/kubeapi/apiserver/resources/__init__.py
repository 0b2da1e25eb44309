"""The served resources: the registry, Kubernetes' built-in resources, and those that definitions describe."""
