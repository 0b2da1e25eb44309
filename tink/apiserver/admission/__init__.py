"""Admission: webhooks that change or refuse writes (k8s.io/apiserver, pkg/admission)."""
