"""Namespaces that the operator has named: an API lists nothing in one that is not there, and no error says so."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.resources import NAMESPACE

log = logging.getLogger(__name__)


async def say_which_are_missing(client: KubeClient, names: Iterable[str]) -> None:
    """A line of the log for each that is not there, as far as this program may look. Once: it may come later."""
    for name in names:
        try:
            await client.get(NAMESPACE, name, None)
        except NotFoundError:
            log.warning("--namespaces: there is no namespace %r: what is in it is seen once there is one", name)
        except ApiError as error:
            log.debug("namespace %r can't be looked at: %s", name, error)
