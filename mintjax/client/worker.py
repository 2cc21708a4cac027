"""The one thread that carries out a service's requests, in the order in which they were submitted."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from mintjax.client.errors import RequestFailedError, as_request_error
from mintjax.client.futures import Future, here

T = TypeVar("T")


class Worker:
    """Carries out requests one after the other on a thread of its own.

    An error belongs to its request alone. At the end of the program all that was submitted is carried out first.

    Example:
        >>> Worker().submit(lambda: 1 + 1).result()
        2
    """

    def __init__(self) -> None:
        """Start no thread yet; the first request does."""
        # What the thread knows its worker by: with a reference to the worker itself, neither would ever go away.
        self._mark = object()
        self._executor = ThreadPoolExecutor(1, "mintjax", _enter, (self._mark,))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queues a request.

        Args:
            call: what to do; its result or its error is the future's.

        Raises:
            RequestFailedError: if the worker is closed.
        """
        future: Future[T] = Future(self._mark)
        self.submit_into(future, call)
        return future

    def submit_into(self, future: Future[Any], call: Callable[[], Any]) -> None:
        """Queues a request for a future that exists already and has no worker yet."""
        future._worker = self._mark
        try:
            self._executor.submit(_run, future, call)
        except RuntimeError as error:
            raise RequestFailedError(
                "this service client is closed; create another one with ServiceClient()"
            ) from error

    def close(self) -> None:
        """Waits until all requests are carried out, and takes no more."""
        self._executor.shutdown()


def _enter(mark: object) -> None:
    """Mark the thread as the worker's."""
    here.worker = mark


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    """Carry out a request unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except Exception as error:
        failed = as_request_error(error)
        if failed is not error:
            failed.__cause__ = error
        future.set_exception(failed)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
