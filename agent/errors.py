"""The one tree of errors.

Every error that a person may see says what is wrong, where (file and line, or URL), and what to do about it.
Standard library only: the launcher uses it too.
"""

from __future__ import annotations


class AgentError(Exception):
    """Something a person can act on.

    ``where`` is ``file:line`` or a URL; ``remedy`` one sentence in the imperative. ``exit_code`` is what the
    command line exits with (64 = the caller's mistake, as in sysexits.h).
    """

    exit_code = 1

    def __init__(self, message: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  remedy: {self.remedy}" if self.remedy else head


class UsageError(AgentError):
    """The command line or a file that the user wrote is wrong."""

    exit_code = 64


class ConfigError(UsageError):
    """A configuration, rule or fault file does not hold; ``where`` names file and line."""


class JournalError(AgentError):
    """The journal cannot be read or written."""


class LauncherError(AgentError):
    """The launcher cannot be reached, or refused a verb; ``code`` is the wire protocol's error code."""

    def __init__(
        self, message: str, *, code: str = "failed", where: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message, where=where, remedy=remedy)
        self.code = code


class NotifyError(AgentError):
    """A notifier could not deliver; ``retry_after`` in seconds where the receiver named it."""

    def __init__(self, message: str, *, retry_after: float | None = None, permanent: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.permanent = permanent


class NotFoundError(AgentError):
    """No incident, action or server of that name."""


class ConflictError(AgentError):
    """It exists, but its state does not allow what was asked (approving what was already denied, say)."""
