"""The key-value store through which new communication groups find each other.

Lives in the controller; its calls come over the authenticated control links, so no store process
has to be hosted, secured or outlived. Keys belong to a generation and vanish with it.
"""

from __future__ import annotations

import asyncio


class KeyStore:
    """Values by (generation, key), and the waits for those not there yet."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, str], bytes] = {}
        self._changed = asyncio.Condition()
        self._oldest = 0

    async def set(self, generation: int, key: str, value: bytes) -> None:
        """Publish a value; a generation already dropped takes none."""
        async with self._changed:
            if generation >= self._oldest:
                self._values[generation, key] = value
                self._changed.notify_all()

    async def get(
        self, generation: int, keys: tuple[str, ...], *, seconds: float
    ) -> tuple[bytes, ...]:
        """The values of all keys; () when they do not come in time or the generation is dropped."""

        def there() -> bool:
            return generation < self._oldest or all(
                (generation, key) in self._values for key in keys
            )

        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(there), seconds)
            except TimeoutError:
                return ()
            if generation < self._oldest:
                return ()
            return tuple(self._values[generation, key] for key in keys)

    async def drop_before(self, generation: int) -> None:
        """Forget older generations and wake whoever waits for them."""
        async with self._changed:
            self._oldest = max(self._oldest, generation)
            self._values = {k: v for k, v in self._values.items() if k[0] >= self._oldest}
            self._changed.notify_all()
