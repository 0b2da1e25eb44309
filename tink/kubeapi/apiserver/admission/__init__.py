"""Admission: webhooks that change or reject writes (k8s.io/apiserver, pkg/admission).

The verbs make one `attributes.Attributes` for each attempt of a write and pass it to `webhooks`: first to `mutate`,
then to `validate` if schema and rules have found no error. A configuration is compiled when it is stored
(`configuration`, with `matching`). `review` builds the requests and evaluates the answers;
`webhooks` transports them. A `plugin` runs in this process, and rejects a write that it can't review.
"""
