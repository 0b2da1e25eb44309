"""What is said about hosts, in the log and in Events: each thing once, until it is something else."""

from __future__ import annotations

import logging

from tink.convert.findings import Findings, Kind
from tink.convert.metal3 import bounded
from tink.kube.objects import NamespacedName
from tink.kube.runtime import Event, EventRecorder
from tink.limits.log import LimitedLog
from tink.metal3.hosts import Hosts

_MOST_FINDINGS = 8
"""In one Event."""


class Reporter:
    """`limited_log` bounds the lines of the log, `recorder` the Events."""

    def __init__(self, hosts: Hosts, limited_log: LimitedLog, recorder: EventRecorder) -> None:
        self._hosts = hosts
        self._limited_log = limited_log
        self._recorder = recorder
        self._reported: dict[NamespacedName, dict[str, str]] = {}
        """The last message about a host, by its reason."""

    def report(self, key: NamespacedName, reason: str, message: str, *, warning: bool = False) -> None:
        """Say something about a host, unless it was said last."""
        reported = self._reported.setdefault(key, {})
        message = bounded(message)
        if reported.get(reason) == message:
            return
        reported[reason] = message
        level = logging.WARNING if warning else logging.INFO
        self._limited_log.log(level, "host %s: %s: %s", key, reason, message, owner=key.namespace)
        if (subject := self._hosts.subject(key)) is not None:
            self._recorder.event(*subject, Event(reason, message, warning))

    def report_findings(self, key: NamespacedName, findings: Findings, *, converted: bool) -> None:
        """What was not carried over, without what Events of their own tell."""
        lost = [f"{each.path}: {each.reason}" for each in findings if each.kind is not Kind.CHANGED]
        hints = [f"{each.path}: {each.reason}" for each in findings if each.path == "spec.rootDeviceHints"]
        messages = list(dict.fromkeys([*hints, *lost]))
        if not messages:
            self.clear(key, "NotCarriedOver")
            return
        more = f"; and {len(messages) - _MOST_FINDINGS} more" if len(messages) > _MOST_FINDINGS else ""
        self.report(key, "NotCarriedOver", "; ".join(messages[:_MOST_FINDINGS]) + more, warning=not converted)

    def clear(self, key: NamespacedName, reason: str) -> bool:
        """It is so no more, and is said again when it is; whether it was."""
        return self._reported.get(key, {}).pop(reason, None) is not None

    def forget(self, key: NamespacedName) -> None:
        """The host is gone."""
        self._reported.pop(key, None)
