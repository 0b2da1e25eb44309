"""Metrics for Prometheus, for all roles.

    counts    -> histograms as plain numbers, where events happen: an addition and a look-up, no lock, no library
    families  -> conversion of numbers to Prometheus' metrics at each scrape
    process   -> the registry of a process with the metrics of the process itself

Names are those of Kubernetes' and gRPC's own programs (`workqueue_depth`, `rest_client_requests_total`,
`grpc_server_handled_total`), so that their dashboards and alerts work; other names begin with `tinkedge_`. No label has
a value that remote hosts or tenants can choose, such as a machine, an object, a namespace or a path.
"""

from tink.metrics.counts import Histogram, Histograms

__all__ = ["Histogram", "Histograms"]
