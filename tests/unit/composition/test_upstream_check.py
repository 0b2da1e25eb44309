"""doctor asks the upstream edge itself, signed, before machines need it."""

from edge.composition.checks import Severity, upstream_edge
from tests.ports import free_port


def test_nothing_is_said_where_no_upstream_edge_is_named():
    assert list(upstream_edge("", None)) == []


def test_upstream_edge_that_does_not_answer_is_a_warning_and_one_without_a_key_is_wrong(tmp_path):
    key = tmp_path / "key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    authority = f"127.0.0.1:{free_port()}"
    (found,) = upstream_edge(authority, key)
    assert (found.severity, found.seen) == (Severity.WARNING, "nobody listens there")
    (found,) = upstream_edge(authority, None)
    assert found.how_bad is Severity.ERROR
    (found,) = upstream_edge(authority, tmp_path / "none")
    assert found.how_bad is Severity.ERROR
