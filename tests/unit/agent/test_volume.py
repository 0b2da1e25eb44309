"""The volumes of an action, as all runtimes read them."""

import pytest

from tink.agent.model import ActionError
from tink.agent.volume import Volume, parse_volume


def test_volume_with_several_options():
    assert parse_volume("/a:/b:ro,rslave") == Volume("/a", "/b", ("ro", "rslave"), named=False)


@pytest.mark.parametrize(
    "text",
    ["/a", "", "/a:b", "/a:/", "/a:/b/../..", "/a:/b:rw:x", "/a:/b:exec", ":/b", "../x:/b", "a/b:/c", "..:/c", "-x:/c"],
)
def test_bad_volume_is_named(text):
    with pytest.raises(ActionError, match="volumes") as caught:
        parse_volume(text)
    assert repr(text) in str(caught.value)
