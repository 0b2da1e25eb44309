"""Admission: webhooks and a plugin that change or reject writes (k8s.io/apiserver, pkg/admission).

A verb makes one `review.Attributes` for each attempt of a write. `webhooks.Webhooks` first calls the mutating webhooks,
and then the validating ones if schema and rules found no error. `review` builds the requests and evaluates the answers.
A webhook configuration is compiled when it is stored, so a write reads nothing but memory.
"""
