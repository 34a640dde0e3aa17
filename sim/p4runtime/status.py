"""Errors as P4Runtime reports them (P4Runtime 1.4, "Error Reporting Messages").

One error inside a batch never stops the batch: each update (or read request) gets a ``p4.v1.Error`` in a
``google.rpc.Status`` that travels as trailing metadata, and the call as a whole ends with UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2

Code = grpc.StatusCode

DETAILS_KEY = "grpc-status-details-bin"

# A gRPC client takes 8 KiB of metadata unless told otherwise and then reports RESOURCE_EXHAUSTED instead of
# the status (P4Runtime 1.4, "gRPC Metadata Maximum Size"); binary metadata grows by a third on the wire.
MAX_DETAILS_BYTES = 5_500


class RequestError(Exception):
    """A request, or one update of it, is refused with a canonical code and one line of text."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> RequestError:
    """The most common refusal: INVALID_ARGUMENT."""
    return RequestError(Code.INVALID_ARGUMENT, message)


def batch_failure(
    outcomes: Sequence[RequestError | None], noun: str
) -> tuple[str, tuple[tuple[str, bytes], ...]]:
    """The status message and trailing metadata of a batch in which something failed.

    ``outcomes`` holds one item per update in request order, None where it succeeded; ``noun`` is what the
    batch is made of ("update", "request"). When the details would not fit a default client's metadata limit
    the per-item texts are left out (the codes stay); the first text is in the status message anyway.
    """
    failed = [(index, error) for index, error in enumerate(outcomes) if error is not None]
    index, first = failed[0]
    message = f"{len(failed)} of {len(outcomes)} {noun}s failed; {noun} {index}: {first.message}"
    details = _details(outcomes, message, with_texts=True)
    if len(details) > MAX_DETAILS_BYTES:
        details = _details(outcomes, message, with_texts=False)
    return message, ((DETAILS_KEY, details),)


def _details(outcomes: Sequence[RequestError | None], message: str, *, with_texts: bool) -> bytes:
    status = status_pb2.Status(code=Code.UNKNOWN.value[0], message=message)
    for outcome in outcomes:
        error = p4runtime_pb2.Error()
        if outcome is not None:
            error.canonical_code = outcome.code.value[0]
            error.message = outcome.message if with_texts else ""
        status.details.add().Pack(error)
    return status.SerializeToString()
