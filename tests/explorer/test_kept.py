"""What is kept for those who ask again."""

import threading
import time

from regard.explorer.kept import Kept


def test_a_value_is_made_once_however_many_threads_ask_for_it() -> None:
    kept, made = Kept(100), []

    def make() -> int:
        time.sleep(0.05)
        made.append(1)
        return 5

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(kept.get("a", make, lambda _: 1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, made) == ([5] * 8, [1])


def test_who_asks_for_another_key_does_not_wait() -> None:
    kept, go = Kept(100), threading.Event()
    slow = threading.Thread(target=lambda: kept.get("slow", lambda: go.wait(10), lambda _: 1))
    slow.start()
    assert kept.get("quick", lambda: 3, lambda _: 1) == 3
    assert slow.is_alive()
    go.set()
    slow.join()


def test_what_was_not_asked_for_longest_goes_first() -> None:
    kept = Kept(10)
    for key in "ab":
        kept.get(key, lambda: 0, lambda _: 4)
    kept.get("a", lambda: 0, lambda _: 4)
    kept.get("c", lambda: 0, lambda _: 4)
    assert [kept.has(key) for key in "abc"] == [True, False, True]
    assert kept.used == 8


def test_one_value_larger_than_all_room_is_kept_alone() -> None:
    kept = Kept(10)
    kept.get("a", lambda: 0, lambda _: 4)
    kept.get("b", lambda: 0, lambda _: 40)
    assert [kept.has(key) for key in "ab"] == [False, True]


def test_what_is_dropped_is_made_anew() -> None:
    kept = Kept(10)
    kept.get(("x", 1), lambda: 1, lambda _: 4)
    kept.drop(lambda key: key[0] == "x")
    assert kept.used == 0
    assert kept.get(("x", 1), lambda: 2, lambda _: 4) == 2


def test_an_error_while_making_leaves_nothing_behind() -> None:
    kept = Kept(10)
    for _ in range(2):
        try:
            kept.get("a", lambda: 1 // 0, lambda _: 1)
        except ZeroDivisionError:
            continue
    assert kept.get("a", lambda: 7, lambda _: 1) == 7
