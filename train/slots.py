"""Caches of finished episodes that wait until their group is complete, so that its gradient can be taken from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from mintjax.cache import State, grow
from mintjax.row_extension import join_rows, share_start
from mintjax.train.row_pool import Prompt, RowPool


@dataclass(frozen=True, eq=False)
class _Cache:
    """An episode's cache and what it begins with; ``row`` while it still stands in one."""

    row: int | None
    state: State | None = None
    prompt: Prompt | None = None


class Slots:
    """At most ``count`` caches outside of the rows; one that finds no slot stays in its row, which then cannot refill.

    A group of G episodes never has more than G - 1 that wait. So there is always a row to go on in, as long as those that
    begin leave G rows and slots to the first group that has not wholly begun.

    Attributes:
        used_most: slots that were in use at most.
        bytes: what the caches in them take now.

    Example:
        >>> slots = Slots(pool, group_size=4, count=8)
        >>> slots.finish(group=0, member=2, row=5)
        >>> slots.free_rows()
        [5]
    """

    def __init__(self, pool: RowPool, group_size: int, count: int) -> None:
        """Start with empty slots."""
        self._pool, self._group_size, self._count = pool, group_size, count
        self._waiting: dict[int, dict[int, _Cache]] = {}
        self.used_most = 0

    @property
    def bytes(self) -> int:
        """What the caches in slots take."""
        return sum(cache.state.cache_bytes for cache in self._all() if cache.state is not None)

    @property
    def parked(self) -> int:
        """Caches that wait in their rows."""
        return sum(cache.row is not None for cache in self._all())

    @property
    def used(self) -> int:
        """Slots in use."""
        return sum(cache.state is not None for cache in self._all())

    @property
    def movable(self) -> bool:
        """Whether a cache waits in its row while there is a slot for it."""
        return self.parked > 0 and self.used < self._count

    def after(self, group: int) -> int:
        """Caches that wait for groups after this one."""
        return sum(len(members) for number, members in self._waiting.items() if number > group)

    def finish(self, group: int, member: int, row: int | None) -> None:
        """Takes the cache of a finished episode, which stays where it is for now; None where it never had one."""
        self._waiting.setdefault(group, {})[member] = _Cache(row)

    def complete(self) -> list[int]:
        """The groups whose episodes have all finished, in their order."""
        return sorted(g for g, members in self._waiting.items() if len(members) == self._group_size)

    def release(self, group: int, fan: int) -> tuple[State | None, list[int]]:
        """Gives a complete group's caches away.

        Args:
            group: one that is `complete`.
            fan: members next to each other that begin alike, as a rule; what they begin with is then held once for them.

        Returns:
            One state with a row for each member, in their order; None where none has a cache. And the rows that are free
            now.

        Example:
            >>> state, rows = slots.release(group=0, fan=4)
        """
        members = self._waiting.pop(group)
        rows = [cache.row for cache in members.values() if cache.row is not None]
        caches = [self._copied(members[member]) for member in range(self._group_size)]
        if all(cache.prompt is None for cache in caches):
            return None, rows
        empty = self._pool.empty()
        joined = join_rows(
            [_grown(empty if x.state is None else x.state, empty.capacity) for x in caches]
        )
        starts: list[State] = []
        for first in range(0, len(caches), fan):
            prompts = [x.prompt for x in caches[first : first + fan] if x.prompt is not None]
            if len({prompt.ids.tobytes() for prompt in prompts}) > 1:
                return joined, rows
            starts.append(_grown(prompts[0].state, empty.capacity) if prompts else empty)
        return share_start(joined, join_rows(starts) if len(starts) > 1 else starts[0]), rows

    def free_rows(self) -> list[int]:
        """Copies caches out of their rows while there are slots for them; the rows that are free now."""
        freed = []
        for members in self._waiting.values():
            for member, cache in members.items():
                if cache.row is not None and self.used < self._count:
                    members[member] = self._copied(cache)
                    freed.append(cache.row)
                    self.used_most = max(self.used_most, self.used)
        return freed

    def _copied(self, cache: _Cache) -> _Cache:
        """The same outside of the rows."""
        return cache if cache.row is None else _Cache(None, *self._pool.copy_out(cache.row))

    def _all(self) -> Sequence[_Cache]:
        return [cache for members in self._waiting.values() for cache in members.values()]


def _grown(state: State, capacity: int) -> State:
    """The state with the rows' capacity; it is the same one where that has not changed."""
    return state if state.capacity == capacity else grow(state, capacity)
