"""Lists whose objects can't all be given: refused if that is known in time, broken off if the answer has begun."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from tink.apiserver.errors import StatusError
from tink.apiserver.read.lists import Lists
from tink.kube.client import ApiError, UnreachableError
from tink.kube.resources import CRD


@pytest.mark.parametrize(("given", "error"), [(0, ApiError), (1, UnreachableError), (3, UnreachableError)])
async def test_client_never_takes_a_part_of_a_list_for_the_whole(
    given: int, error: type[ApiError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def parts(self: Lists, chosen: Any, page: Any) -> AsyncIterator[list[bytes]]:
        for _ in range(given):
            yield [b'{"metadata":{"name":"x"}}']
        raise StatusError(500, "", "conversion webhook failed")

    monkeypatch.setattr(Lists, "_parts", parts)
    async with serving(tmp_path) as (_, client):
        with pytest.raises(ApiError) as caught:
            await client.list(CRD)
        assert type(caught.value) is error
        if error is ApiError:
            assert caught.value.message == "conversion webhook failed"
