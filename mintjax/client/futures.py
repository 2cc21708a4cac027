"""What a call returns: a future for threads and for asyncio, and a client that is its own future."""

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, Self, TypeVar

from mintjax.client.errors import RequestFailedError

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

# Which worker the current thread belongs to, if any.
here = threading.local()


class Future(concurrent.futures.Future[T]):
    """The result of a request that was submitted: block for it, or await it.

    It is a ``concurrent.futures.Future`` too. ``cancel()`` takes back a request that has not begun. A Ctrl-C while
    waiting ends the wait alone: the request goes on, and its result can still be had.

    Example:
        >>> future = training_client.forward_backward(data, "cross_entropy")
        >>> future.result().metrics["loss:sum"]
    """

    def __init__(self, worker: object = None) -> None:
        """Remember which worker will set the result, since waiting on its own thread would never end."""
        super().__init__()
        self._worker = worker

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result.

        Args:
            timeout: seconds to wait at most; None is for ever.

        Raises:
            RequestFailedError: where the request failed.
            TimeoutError: where the time is up; the request goes on.
            concurrent.futures.CancelledError: where it was cancelled.
            RuntimeError: where a custom loss waits for a request that stands in line behind it.
        """
        if not self.done() and self._worker is not None and self._worker is worker_here():
            raise RuntimeError(
                "this request runs after the one that waits for it; wait outside of the loss function"
            )
        return super().result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:
        """The same for asyncio."""
        return await asyncio.wait_for(asyncio.wrap_future(self), timeout)

    def future(self) -> concurrent.futures.Future[T]:
        """This very object, which is such a future."""
        return self

    def __await__(self) -> Generator[Any, None, T]:
        """Waits in an event loop."""
        return asyncio.wrap_future(self).__await__()


class Creation(Future[Any]):
    """A client that is being created, and the future of that at once: ``result()`` and ``await`` return itself.

    It can be used at once: its requests are carried out after its creation, and fail as that does.
    """

    def result(self, timeout: float | None = None) -> Self:
        """Waits until the client is there, and returns it."""
        super().result(timeout)
        return self

    def ready(self) -> Self:
        """The client, on its worker's thread, where it was created or failed before.

        Raises:
            RequestFailedError: where it failed, or was cancelled.
        """
        try:
            return self.result()
        except concurrent.futures.CancelledError as error:
            raise RequestFailedError(
                "the creation of this client was cancelled; create another one"
            ) from error


C = TypeVar("C", bound=Creation)


def worker_here() -> object:
    """The worker whose thread this is; None on all others."""
    return getattr(here, "worker", None)


def submitted(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The ``_async`` twin of a method that returns a future: awaiting it submits, and gives the future.

    Example:
        >>> future = await training_client.optim_step_async(params)
        >>> response = await future
    """

    @functools.wraps(method)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(*args, **kwargs)

    return twin


def awaited(method: Callable[P, Future[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The ``_async`` twin of a method that returns a future: awaiting it gives the result.

    Example:
        >>> response = await sampling_client.sample_async(prompt, 1, params)
    """

    @functools.wraps(method)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return await method(*args, **kwargs)

    return twin


def created(method: Callable[P, C]) -> Callable[P, Coroutine[Any, Any, C]]:
    """The ``_async`` twin of a method that returns a client: awaiting it waits until the client is there.

    Example:
        >>> client = await service_client.create_lora_training_client_async("smollm2-135m-instruct")
    """

    @functools.wraps(method)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> C:
        return await method(*args, **kwargs)

    return twin
