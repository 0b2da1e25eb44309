"""What a run says of itself: numbers, bars, and why machines failed."""

from __future__ import annotations

import pytest

from edge.fleet.results import (
    BarError,
    Failure,
    Question,
    Recorder,
    Report,
    Step,
    Whole,
    judged,
    lines,
    numbers,
    parse,
    percentile,
)


def recorder() -> Recorder:
    made = Recorder(100)
    for number in range(1, 100):
        made.took(Whole.PROVISIONED, float(number))
        made.took(Question.DHCP_OFFER, number / 1000)
    made.failures.append(Failure("m-7", Step.KERNEL, "kernel: 404", injected=False))
    return made


@pytest.mark.parametrize(
    ("bar", "holds"),
    [
        ("failed=1", True),
        ("failed=0", False),
        ("failed-without-fault=0", False),
        ("succeeded>=99%", True),
        ("succeeded>99%", False),
        ("dhcp-offer.p99<1s", True),
        ("dhcp-offer.p99<50ms", False),
        ("provisioned.max<=1.65m", True),
        ("twice=0", True),
    ],
)
def test_bar_holds_or_is_told_with_its_number(bar, holds):
    broken = judged([parse(bar)], numbers(recorder(), 10.0))
    assert bool(broken) is not holds
    assert all(text.startswith(f"{bar}: it is ") for text in broken)


@pytest.mark.parametrize("text", ["", "failed", "failed==0", "failed<", "p99<1s<2s", "failed<one"])
def test_bar_that_can_not_be_read_is_refused(text):
    with pytest.raises(BarError, match="is no bar"):
        parse(text)


def test_bar_of_what_is_not_measured_is_refused():
    with pytest.raises(BarError, match="there is no failled"):
        judged([parse("failled=0")], numbers(recorder(), 10.0))


def test_percentile_is_the_nearest_rank():
    assert [percentile(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([], 0.5) == 0


def test_action_that_is_run_again_is_seen():
    made = Recorder(1)
    for action in ("a", "b", "a"):
        made.action_begins("m-1", "workflow", action)
    made.action_begins("m-1", "another workflow", "a")
    assert made.twice == ["m-1: action a of workflow workflow"]
    assert made.actions == 4


def test_step_that_was_not_done_has_no_time():
    made = Recorder(2)
    made.moved(Step.OFF, Step.KERNEL, 1.0, completed=True)
    made.moved(Step.KERNEL, Step.FIRMWARE, 2.0, completed=False)
    made.moved(Step.FIRMWARE, Step.KERNEL, 3.0, completed=True)
    made.moved(Step.KERNEL, Step.DONE, 4.0, completed=True)
    assert list(made.seconds[Step.KERNEL]) == [4.0]
    assert (made.at[Step.OFF], made.at[Step.DONE]) == (1, 1)


def test_errors_with_ever_new_texts_do_not_fill_memory():
    made = Recorder(1)
    for number in range(5000):
        made.error(Step.AGENT, str(number))
    assert len(made.errors) <= 1001
    assert made.errors.total() == 5000


def test_report_names_the_first_cause_and_a_machine():
    made = recorder()
    report = Report({"machines": "100"}, numbers(made, 10.0), made.failures, {}, {}, [])
    text = "\n".join(lines(report, {key: len(values) for key, values in made.seconds.items()}))
    assert "1  kernel: kernel: 404, e.g. m-7" in text
    assert report.as_json()["failures"] == [
        {"machine": "m-7", "step": "kernel", "cause": "kernel: 404", "injected": False}
    ]
