"""The HTTP shell: requests to verbs, results to responses."""
