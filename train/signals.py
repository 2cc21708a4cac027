"""Stopping on request: SIGTERM and SIGINT become a flag that the loop reads between two phases."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether the process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        """Start without a request."""
        self.signal: str | None = None

    def __bool__(self) -> bool:
        """Return whether it is time to save and leave."""
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn SIGTERM and SIGINT into a flag until the block ends.

    The first signal sets the flag; after it the handlers are the earlier ones again, so a second
    Ctrl-C interrupts at once. Python delivers signals to the main thread: in any other the flag
    stays false.

    Yields:
        The flag.

    Example:
        >>> with stop_requests() as stop:
        ...     while not stop:
        ...         train_one_step()
        ...     save_checkpoint()
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number).name
        restore()

    for number in _SIGNALS:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        restore()
