"""When an engine looks who has arrived: before each step, one step ahead, or every few steps."""

from typing import Any

from llmirage_server.cluster.instances.arrivals import FrontEnd


def _admitted(lab: Any, at: float, **limits: Any) -> float:
    """When a request is admitted that comes at `at`, while another one decodes in steps of about a second."""
    engine = lab(**limits)
    engine.submit(1, 40)
    second = engine.submit(1, 1, at)
    engine.run()
    return float(second.admitted_s)


def _ends(lab: Any, steps: int) -> float:
    """When the first so many steps of one request of one token are over."""
    return float(lab.seconds(1, 0) + (steps - 1) * lab.seconds(0, 1))


def test_an_engine_that_forms_steps_one_by_one_admits_at_the_end_of_the_step(lab: Any) -> None:
    assert _admitted(lab, 3.5) == _ends(lab, 4)


def test_an_engine_that_schedules_ahead_admits_a_step_later(lab: Any) -> None:
    assert _admitted(lab, 3.5, async_scheduling=True) == _ends(lab, 5)
    assert _admitted(lab, 0.5, async_scheduling=True) == _ends(lab, 2)  # the step after the first one was formed at once


def test_an_idle_engine_admits_at_once_whatever_it_does_ahead(lab: Any) -> None:
    engine = lab(async_scheduling=True, scheduler="sglang", scheduler_recv_interval=10)
    engine.submit(1, 2)
    late = engine.submit(1, 2, 50.0)
    engine.run()
    assert late.admitted_s == 50.0


def test_who_comes_during_the_last_step_is_not_held_up(lab: Any) -> None:
    engine = lab(async_scheduling=True)
    engine.submit(1, 1)
    late = engine.submit(1, 1, 0.5)
    engine.run()
    assert late.admitted_s == _ends(lab, 1)


def test_sglang_receives_every_few_decoding_steps(lab: Any) -> None:
    """After the prompt's step it looks; then before the sixth, the eleventh ... of the decoding steps that follow."""
    sglang = {"scheduler": "sglang", "scheduler_recv_interval": 5}
    assert [_admitted(lab, at, **sglang) for at in (0.5, 1.5, 5.0, 6.5)] == [_ends(lab, n) for n in (1, 6, 6, 11)]


def test_it_receives_ahead_of_the_step_that_runs(lab: Any) -> None:
    sglang = {"scheduler": "sglang", "scheduler_recv_interval": 5, "async_scheduling": True}
    assert [_admitted(lab, at, **sglang) for at in (0.5, 4.5, 6.5)] == [_ends(lab, n) for n in (6, 6, 11)]


def test_a_request_waits_behind_the_tokens_that_go_out(lab: Any) -> None:
    """One process of a front end has both: tokens that come faster than it sends them hold up who comes next."""
    engine = lab(front_end_s=FrontEnd(output_s=1.5))
    engine.submit(1, 40)
    second = engine.submit(1, 1, _ends(lab, 9) + 0.01)
    engine.run()
    free_s = _ends(lab, 1) + 9 * 1.5  # steps of about a second each bring a token
    assert free_s > _ends(lab, 9) + 0.01
    assert second.admitted_s == next(end for end in (_ends(lab, n) for n in range(1, 41)) if end >= free_s)


def test_a_front_end_that_sends_quicker_than_steps_bring_tokens_holds_nobody_up(lab: Any) -> None:
    assert _admitted(lab, 3.9) == _ends(lab, 4)
    engine = lab(front_end_s=FrontEnd(output_s=0.5))
    engine.submit(1, 40)
    second = engine.submit(1, 1, 3.9)
    engine.run()
    assert second.admitted_s == _ends(lab, 4)
