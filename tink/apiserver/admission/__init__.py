"""Admission: webhooks that change or refuse writes (k8s.io/apiserver, pkg/admission).

The verbs make one `attributes.Attributes` for each try of a write and hand it to `webhooks`, first to `mutate`, then,
when schema and rules have found nothing wrong, to `validate`. A configuration is compiled when it is stored
(`configuration`, with `matching`); `review` writes the requests and judges the answers, `tink.apiserver.webhooks`
carries them. A `plugin` is asked in this process, and refuses what it can't review.
"""
