"""Admission: webhooks that change or refuse writes (k8s.io/apiserver, pkg/admission).

The verbs hand each write to an `Admission` (`attributes`); `webhooks` is the one that asks configured webhooks. A
configuration is compiled when it is stored (`configuration`, with `matching`); `review` writes the
requests and judges the answers, `tink.apiserver.webhooks` carries them.
"""
