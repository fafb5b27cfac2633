"""``metrics.csv`` in the run folder: one row per value, for a spreadsheet or pandas.

Long form (time, step, series, value), as series have values at different steps. Rows of steps that
were taken back are cut off again.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

from sailor.observe.trackers.points import Point
from sailor.observe.trackers.tracker import Place

HEADER = ("time", "step", "series", "value")


class CsvTracker:
    """Writes the file as the run goes on. A file of the same name is replaced."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(HEADER)

    def point(self, point: Point) -> None:
        """One row per value."""
        moment = datetime.fromtimestamp(point.wall, UTC).isoformat(timespec="milliseconds")
        for series, value in point.values.items():
            self._rows.writerow((moment, point.step, series, repr(float(value))))
        self._file.flush()

    def rewind(self, step: int, *, wall: float) -> None:
        """Keep the rows up to ``step``."""
        self._file.seek(0)
        rows = [row for row in csv.reader(self._file)][1:]
        self._file.seek(0)
        self._file.truncate()
        self._rows.writerow(HEADER)
        self._rows.writerows(row for row in rows if int(row[1]) <= step)
        self._file.flush()

    def close(self, *, status: str) -> None:
        """Close the file."""
        self._file.close()


def open_tracker(place: Place) -> CsvTracker:
    """The tracker of a run."""
    return CsvTracker(place.folder / "metrics.csv")
