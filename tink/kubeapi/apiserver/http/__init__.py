"""The HTTP shell: requests to verbs, results to responses."""

from tink.kubeapi.apiserver.http.app import Api
from tink.kubeapi.apiserver.http.callers import Sessions
from tink.kubeapi.apiserver.http.request_counts import RequestCounts
from tink.kubeapi.apiserver.http.request_log import http_logger

__all__ = ["Api", "RequestCounts", "Sessions", "http_logger"]
