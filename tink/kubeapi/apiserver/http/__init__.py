"""The HTTP shell: requests to verbs, results to responses."""

from tink.kubeapi.apiserver.http.app import Api
from tink.kubeapi.apiserver.http.callers import Sessions
from tink.kubeapi.apiserver.http.monitoring import ApiServerMetrics, RequestCounts, http_logger

__all__ = ["Api", "ApiServerMetrics", "RequestCounts", "Sessions", "http_logger"]
