"""The HTTP shell: requests to verbs, results to responses."""

from tink.apiserver.http.app import Api
from tink.apiserver.http.callers import Sessions
from tink.apiserver.http.request_counts import RequestCounts
from tink.apiserver.http.request_log import http_logger

__all__ = ["Api", "RequestCounts", "Sessions", "http_logger"]
