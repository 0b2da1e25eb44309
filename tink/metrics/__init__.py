"""What is counted for Prometheus, by all roles alike.

    counts    -> plain numbers, kept where things happen: an addition and a look-up, no lock, no library
    families  -> these as Prometheus has them, made when somebody asks
    process   -> the registry of a process, which begins with what is known of the process itself

Names are those that Kubernetes' and gRPC's own programs have for the same (`workqueue_depth`,
`rest_client_requests_total`, `grpc_server_handled_total`), so that dashboards and alerts for them fit; what is ours
begins with `tinkedge_`. No label has a value that strangers or tenants can choose: no machine, no object, no namespace,
no path.
"""

from tink.metrics.counts import Histogram, Histograms

__all__ = ["Histogram", "Histograms"]
