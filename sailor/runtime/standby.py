"""The controller's side of standing by: recordings of the run's roles, and who rehearses which.

Each role of a layout is recorded once in a run, in the second step of the first generation that has
it, and kept in the run folder, where a later start finds it. A standby is told the likeliest few
roles as soon as their recordings are there. No torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from sailor.parallel.layout import Layout
from sailor.parallel.roles import roles
from sailor.plan import Plan
from sailor.runtime.messages import Recorded, Role, Warm
from sailor.training.settings import TrainSettings

log = logging.getLogger(__name__)

MOST_ROLES = 4  # a standby rehearses; each costs it a step
_SUFFIX = ".recording"


def numerics_of(train: TrainSettings) -> str:
    """What of a recipe decides which operations a step runs, besides the layout."""
    return f"{train.device} {train.compute_dtype} deterministic={train.deterministic}"


class Rehearsals:
    """Recordings, and what standbys have been told. ``directory`` is made when it is needed."""

    def __init__(self, directory: Path, *, train: TrainSettings, wanted: bool) -> None:
        self._directory = directory
        self._numerics = numerics_of(train)
        self._wanted = wanted
        self._recordings: dict[str, bytes] = {}
        self._roles: tuple[Plan | None, Mapping[str, tuple[int, ...]]] = (None, {})
        self._layout: Layout | None = None
        self._generation = 0
        self._standbys: tuple[str, ...] = ()
        self._told: dict[str, set[str]] = {}  # node -> roles
        if wanted and directory.is_dir():
            for path in directory.glob(f"*{_SUFFIX}"):
                self._recordings[path.stem] = path.read_bytes()

    def learn(self, layout: Layout) -> None:
        """Work out the roles of a layout that is being prepared; may take a while if it is large.

        They depend on the plan alone, so a layout that is kept has none to work out.
        """
        if self._wanted and self._roles[0] != layout.plan:
            self._roles = (layout.plan, roles(layout, numerics=self._numerics))

    def to_record(self, layout: Layout) -> tuple[int, ...]:
        """One rank of each role that has no recording yet."""
        if not self._wanted:
            return ()
        self.learn(layout)
        return tuple(
            ranks[0] for role, ranks in self._roles[1].items() if role not in self._recordings
        )

    def keep(self, recorded: Recorded) -> None:
        """Remember a recording, here and on disk. A disk that is full costs the next start one."""
        self._recordings[recorded.role] = recorded.data
        try:
            self._directory.mkdir(exist_ok=True)
            path = self._directory / f"{recorded.role}{_SUFFIX}"
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(recorded.data)
            temporary.replace(path)
        except OSError as error:
            log.warning("the recording of role %s was not written: %s", recorded.role, error)

    def stand_by(self, generation: int, layout: Layout, nodes: Sequence[str]) -> None:
        """These nodes stand by for this layout from now on."""
        self._generation, self._layout, self._standbys = generation, layout, tuple(nodes)

    def forget(self, node: str) -> None:
        """It has new workers, or is gone: whatever it rehearsed is lost."""
        self._told.pop(node, None)

    def due(self) -> dict[str, Warm]:
        """What is to be said to whom now: roles that have a recording and were not told yet."""
        layout = self._layout
        if layout is None or not (self._wanted and self._standbys):
            return {}
        self.learn(layout)
        known = [
            (role, ranks[0]) for role, ranks in self._roles[1].items() if role in self._recordings
        ]
        words = {}
        for node in self._standbys:
            told = self._told.setdefault(node, set())
            new = [entry for entry in known[:MOST_ROLES] if entry[0] not in told]
            if not new:
                continue
            told.update(role for role, _ in new)
            words[node] = Warm(
                generation=self._generation,
                plan=layout.plan,
                workers=layout.workers,
                roles=tuple(
                    Role(role=role, rank=rank, recording=self._recordings[role])
                    for role, rank in new
                ),
            )
        return words
