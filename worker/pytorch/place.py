"""Where a training process stands: its options, and what torchrun's environment says of it.

torchrun's variables: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from switchreduce import defaults
from switchreduce.errors import UsageError
from switchreduce.worker.calls import CODECS, NONFINITE

JOIN_TIMEOUT = 60.0  # seconds; ranks load torch, and compile the first time, not all equally fast


@dataclass(frozen=True)
class Options:
    """How a job sums; the same on all ranks.

    ``controller``: HOST:PORT; None takes SWITCHREDUCE_CONTROLLER, else the default port of this machine.
    ``codec``: that of `Communicator.allreduce`; None takes SWITCHREDUCE_CODEC, else "auto".
    ``nonfinite``: "propagate" lets infinity and NaN reach their coordinate on all ranks, as Gloo does and
    `torch.amp.GradScaler` needs; "raise" raises NonFiniteError on all ranks.
    ``minimise``: "time" or "bytes", what "auto" picks a codec for.
    ``slots``: switch slots wanted, 0 for the controller's default.
    ``join_timeout``: seconds for all ranks to arrive.
    ``timeout``: seconds that a call waits for a rank that lives and does not call. (One that died is noticed
    within seconds whatever this is.) None takes the process group's, or 30 minutes, as torch does.
    """

    controller: str | None = None
    codec: str | None = None
    nonfinite: str = "propagate"
    minimise: str = "time"
    slots: int = 0
    join_timeout: float = JOIN_TIMEOUT
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("codec", self.codec_name(), CODECS),
            ("nonfinite", self.nonfinite, NONFINITE),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r} is unknown: choose from {', '.join(known)}")

    def controller_address(self, environment: Mapping[str, str] = os.environ) -> str:
        return (
            self.controller
            or environment.get("SWITCHREDUCE_CONTROLLER")
            or f"127.0.0.1:{defaults.CONTROLLER_PORT}"
        )

    def codec_name(self, environment: Mapping[str, str] = os.environ) -> str:
        return self.codec or environment.get("SWITCHREDUCE_CODEC") or "auto"


def number_from(name: str, environment: Mapping[str, str] = os.environ) -> int:
    """RANK or WORLD_SIZE. Raises UsageError where it is not there or no number."""
    text = environment.get(name)
    if text is None:
        raise UsageError(f"no {name} in the environment: start with torchrun, or pass {name.lower()}=")
    if not text.isdecimal():
        raise UsageError(f"{name}={text!r} of the environment is not a number: start with torchrun")
    return int(text)


def job_name(environment: Mapping[str, str] = os.environ) -> str:
    """A name that all ranks of this run have in common, and no earlier start of it.

    An elastic restart is a new job, so that a rank of the old one that is still there cannot take part.
    Raises UsageError where the environment tells runs not apart.
    """
    run = environment.get("TORCHELASTIC_RUN_ID", "none")
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if run == "none" and (address is None or port is None):  # what torchrun says without --rdzv-id
        raise UsageError("no job was given and the environment names none: start with torchrun, or pass job=")
    name = run if run != "none" else f"{address}:{port}"
    return f"torch-{name}-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
