"""Errors a user or a cloud can cause: one shape, a stable code, an exit code and a way out.

A bad value in code is a ValueError, an impossible state an assert; everything here is for people.
The catalogue of codes lives in docs/errors.md; exit codes are those of docs/architecture.md.
"""

from __future__ import annotations


class SailorError(Exception):
    """Something the person at the keyboard can act on. Renders as what / where / why / fix."""

    exit_code = 1

    def __init__(
        self, what: str, *, code: str, why: str = "", where: str = "", fix: str = ""
    ) -> None:
        super().__init__(what)
        self.what = what
        self.code = code
        self.why = why
        self.where = where
        self.fix = fix

    def render(self) -> str:
        """The message as printed on the terminal, without colour."""
        lines = [f"error[{self.code}] {self.what}   (exit {self.exit_code})"]
        for label, text in (("why", self.why), ("where", self.where), ("fix", self.fix)):
            if text:
                lines.append(f"  {label:<6}" + text.replace("\n", "\n        "))
        return "\n".join(lines)


class ConfigError(SailorError):
    """Usage or configuration: nothing was started."""

    exit_code = 2


class NoFeasiblePlan(SailorError):
    """No plan satisfies memory, capacity, quota, budget and deadline together."""

    exit_code = 3


class CloudError(SailorError):
    """A cloud, or this computer posing as one, refused what the plan needs."""

    exit_code = 4


class DataError(SailorError):
    """Text, tokens or tokenizer cannot be used as they are."""

    exit_code = 5


class Diverged(SailorError):
    """The loss became NaN or infinite, or a spike rule fired."""

    exit_code = 6


class LimitReached(SailorError):
    """The budget or the deadline was reached: stopped cleanly, resumable."""

    exit_code = 7


class Interrupted(SailorError):
    """Stopped on request with a durable checkpoint: the same command resumes."""

    exit_code = 75
