"""What goes wrong with a request, by Tinker's names and categories."""

from enum import StrEnum

from mintjax.train.saved_trees import CheckpointError


class RequestErrorCategory(StrEnum):
    """Whose fault a failed request is."""

    Unknown = "unknown"
    Server = "server"
    User = "user"


class TinkerError(Exception):
    """Any error of a client."""


class RequestFailedError(TinkerError):
    """A request that was not carried out; what it would have changed is as it was.

    Attributes:
        request_id: of the request; None where it has none.
        category: ``User`` where the request is at fault, and the message says what to change; else ``Server``.
    """

    def __init__(
        self,
        message: str,
        *,
        category: RequestErrorCategory = RequestErrorCategory.User,
        request_id: str | None = None,
    ) -> None:
        """Take the message as it is to be shown."""
        super().__init__(message)
        self.category = category
        self.request_id = request_id


# What the library raises for what it was given; anything else is a fault of its own.
_USER = (ValueError, TypeError, FileNotFoundError, CheckpointError)


def as_request_error(error: Exception) -> RequestFailedError:
    """An error of the library as one of the request that met it.

    Example:
        >>> as_request_error(ValueError("rank: expected 1 or more")).category
        <RequestErrorCategory.User: 'user'>
    """
    if isinstance(error, RequestFailedError):
        return error
    if isinstance(error, _USER):
        return RequestFailedError(str(error))
    return RequestFailedError(
        f"{type(error).__name__}: {error}", category=RequestErrorCategory.Server
    )
