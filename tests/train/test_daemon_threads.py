import asyncio
import subprocess
import sys
import threading

import pytest

from mintjax.train.daemon_threads import call
from tests.layout import ROOT

PATIENCE = 60  # seconds; only a failing test waits so long

HANGS = """
import asyncio, threading
from mintjax.train.daemon_threads import call

async def give_up():
    try:
        async with asyncio.timeout(0.05):
            await call(threading.Event().wait)
    except TimeoutError:
        print("gave up")

asyncio.run(give_up())
"""


def test_both_kinds_of_function_are_called():
    async def loop_thread(number, *, named):
        return number, named, threading.get_ident()

    def other_thread(number, *, named):
        return number, named, threading.get_ident()

    async def run():
        here = threading.get_ident()
        assert await call(loop_thread, 1, named=2) == (1, 2, here)
        first, second, thread = await call(other_thread, 1, named=2)
        assert (first, second) == (1, 2) and thread != here

    asyncio.run(run())


@pytest.mark.parametrize(
    ("raised", "arrives"),
    [
        (KeyError("k"), KeyError),
        (StopIteration(3), RuntimeError),  # a future refuses it, and whoever awaits it would hang
        (SystemExit(1), RuntimeError),
        (asyncio.CancelledError(), RuntimeError),
    ],
)
def test_what_a_thread_raises_arrives_as_an_exception(raised, arrives):
    def fail():
        raise raised

    with pytest.raises(arrives, match=r"k|StopIteration: 3|SystemExit: 1|CancelledError"):
        asyncio.run(asyncio.wait_for(call(fail), PATIENCE))


def test_neither_the_loop_nor_the_process_waits_for_a_call_that_hangs():
    done = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "gave up\n", "")


def test_an_answer_that_comes_too_late_is_dropped():
    released, returned = threading.Event(), threading.Event()

    def late():
        released.wait(PATIENCE)
        returned.set()
        return "late"

    async def run():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await call(late)
        released.set()
        while not returned.is_set():
            await asyncio.sleep(0)
        return await call(lambda: "next")

    assert asyncio.run(run()) == "next"


def test_calls_that_hang_keep_no_other_from_starting():
    held = threading.Event()

    async def run():
        hanging = [asyncio.ensure_future(call(held.wait, PATIENCE)) for _ in range(64)]
        assert await call(lambda: "through") == "through"
        held.set()
        return await asyncio.gather(*hanging)

    assert asyncio.run(run()) == [True] * 64
