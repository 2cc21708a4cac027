"""Calling what may never return: plain functions run in threads that neither an event loop nor the interpreter waits for.

The threads of ``asyncio.to_thread`` are of another kind: ``asyncio.run`` and the interpreter wait for them at the end, and a
few that hang keep the others from starting. A thread cannot be killed, so one that hangs stays until the process ends.
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


async def call(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Calls a function of either kind: a coroutine function here, any other in a thread of its own.

    Whoever stops waiting leaves the thread behind; what it returns later is dropped.

    Args:
        method: what to call; an awaitable that it returns is awaited here.
        arguments: for it.
        named: for it, by name.

    Returns:
        What it returns.

    Raises:
        Exception: what it raises. ``SystemExit`` and the like, which would end more than the call, become `RuntimeError`
            where they come from a thread.

    Example:
        >>> async with asyncio.timeout(5):
        ...     page = await call(urllib.request.urlopen, "http://localhost")
    """
    if inspect.iscoroutinefunction(method):
        return await method(*arguments, **named)
    result = await _in_thread(method, arguments, named)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(
    method: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """What a function returns that runs in a new daemon thread."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(method, *arguments, **named)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception) or isinstance(raised, StopIteration):
                error = RuntimeError(f"{type(raised).__name__}: {raised}")  # no future takes it
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"call of {method!r}", daemon=True).start()
    return await answer
