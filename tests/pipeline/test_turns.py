"""Who may write when: batches, and those who end them."""

import threading
from itertools import count

import pytest

from polybus.pipeline.turns import Stopping, Turns

PATIENCE_S = 60.0


def test_a_batch_under_way_comes_to_its_end_and_none_begins():
    turns, order = Turns(None), []
    is_under_way, may_end = threading.Event(), threading.Event()

    def work():
        with turns.batch_of("messages"):
            is_under_way.set()
            assert may_end.wait(PATIENCE_S)
            order.append("batch")

    batch = threading.Thread(target=work)
    batch.start()
    assert is_under_way.wait(PATIENCE_S)
    threading.Timer(0.01, may_end.set).start()
    with turns.nobody_writing():
        order.append("stopped")
        with pytest.raises(Stopping), turns.batch_of("a job whose first batch this is"):
            pass
        with pytest.raises(Stopping), turns.batch_of("messages"):
            pass
    batch.join(PATIENCE_S)
    assert order == ["batch", "stopped"]


def test_jobs_may_have_their_first_batch_while_others_are_stopped():
    for _ in range(50):
        turns, is_over = Turns(None), threading.Event()

        def begin(turns=turns, is_over=is_over):
            for number in count():
                try:
                    with turns.batch_of(f"{number}"):
                        pass
                except Stopping:
                    return
                if is_over.is_set():
                    return

        jobs = threading.Thread(target=begin)
        jobs.start()
        with turns.nobody_writing():
            pass
        is_over.set()
        jobs.join(PATIENCE_S)
        assert not jobs.is_alive()


def test_what_ended_a_batch_is_kept():
    turns = Turns(None)
    with pytest.raises(ZeroDivisionError), turns.batch_of("messages"):
        _ = 1 / 0
    assert isinstance(turns.failures["messages"], ZeroDivisionError)
    with pytest.raises(ValueError, match="no"), turns.batch_of("messages"):
        raise ValueError("no")
    assert str(turns.failures["messages"]) == "no"
