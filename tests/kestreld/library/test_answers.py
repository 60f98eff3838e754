"""Answers as futures: what the standard library does with those works with them."""

from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait

from kestreld.library import SimpleBlockingQueue
from kestreld.library.answer import Answer


def test_an_answer_has_all_that_a_future_has() -> None:
    # It is not made by the future's own __init__.
    plain: Future[object] = Future()
    answer: Answer[object] = Answer()
    missing = {name: value for name, value in vars(plain).items() if name not in vars(answer)}
    assert not missing
    for name in ("_state", "_result", "_exception", "_waiters", "_done_callbacks"):
        assert vars(answer)[name] == vars(plain)[name]


def test_answers_can_be_waited_for_as_futures_are() -> None:
    queue: SimpleBlockingQueue[str] = SimpleBlockingQueue()
    first, second = queue.get(), queue.get()
    queue.put("one")
    done, left = wait([first, second], timeout=10, return_when=FIRST_COMPLETED)
    assert (done, left) == ({first}, {second})
    queue.put("two")
    assert {answer.result() for answer in as_completed([first, second], timeout=10)} == {"one", "two"}


def test_an_answer_that_is_there_at_once_is_done_and_calls_back() -> None:
    queue: SimpleBlockingQueue[str] = SimpleBlockingQueue()
    queue.put("one")
    answer, heard = queue.get(), []
    assert answer.done()
    answer.add_done_callback(lambda future: heard.append(future.result()))
    assert heard == ["one"]
