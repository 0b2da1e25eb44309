"""The served resources: the registry, Kubernetes' built-in resources, and custom resources."""
