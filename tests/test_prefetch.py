"""Items made ahead are the same items, in order, and no more of them than asked for."""

from __future__ import annotations

import threading
import time

import pytest

from ondes.prefetch import prefetch


@pytest.mark.parametrize("n", [1, 2, 5])
def test_items_and_errors_come_in_order(n):
    def items():
        yield from range(20)
        raise RuntimeError("the end")

    found = []
    with pytest.raises(RuntimeError, match="the end"):
        found += [found.append(item) for item in prefetch(items(), n)]
    assert found == list(range(20))


@pytest.mark.parametrize("n", [1, 3])
def test_no_more_items_are_made_than_asked_for(n):
    made = []
    items = prefetch((made.append(i) or i for i in range(100)), n)
    next(items)
    deadline = time.monotonic() + 5
    while len(made) < n + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == n + 1
    items.close()


def test_items_are_made_in_another_thread_and_it_closes_them():
    threads = []

    def items():
        try:
            while True:
                yield threading.current_thread()
        finally:
            threads.append(threading.current_thread())

    made = prefetch(items(), 2)
    thread = next(made)
    made.close()
    assert threads == [thread] != [threading.current_thread()]
    assert not thread.is_alive()


def test_what_is_made_ahead_ends_where_nothing_comes_and_it_is_told_to():
    silence = threading.Event()
    told = threading.Event()
    waiting = prefetch(
        iter(lambda: silence.wait(60), None), 1, should_stop=told.is_set, stop=silence
    )
    threading.Timer(0.1, told.set).start()
    assert list(waiting) == []
    assert silence.is_set()
