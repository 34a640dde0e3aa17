"""Bandwidth, delay and loss of a star's links, in both directions of each."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import dataclass

from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.sim.mininet.topology import Star, run

MAX_BANDWIDTH = 1000.0  # Mbit/s, beyond which Mininet does not shape
QUEUE_MS = 50  # packets that would wait longer for their turn are dropped
LOSS_UNITS = 1_000_000  # numgen's modulus: loss in steps of a ten-thousandth of a percent

# The netdev family's hooks see single frames of the data link and nothing of the management link. They sit at
# the hosts' ends, as a switch that reads raw frames gets them ahead of the hooks of its own interfaces.
NFTABLES_RULES = """\
table netdev loss {{
    chain arriving {{
        type filter hook ingress device "{interface}" priority 0;
        numgen random mod {units} < {lost} drop
    }}
    chain leaving {{
        type filter hook egress device "{interface}" priority 0;
        numgen random mod {units} < {lost} drop
    }}
}}
"""


@dataclass(frozen=True)
class Impairment:
    """What every link does to packets, each way. Raises UsageError for what no link can do."""

    bandwidth: float | None = None  # Mbit/s
    delay: str | None = None  # as tc writes times: 10ms
    loss: float = 0.0  # percent

    def __post_init__(self) -> None:
        if self.bandwidth is not None and not 0 < self.bandwidth <= MAX_BANDWIDTH:
            raise UsageError(f"--bw {self.bandwidth:g}: above 0 and up to {MAX_BANDWIDTH:g} Mbit/s")
        if self.delay is not None and not re.fullmatch(r"\d+(\.\d+)?(us|ms|s)", self.delay):
            raise UsageError(f"--delay {self.delay}: a number and a unit, like 10ms, 250us or 1s")
        if not (math.isfinite(self.loss) and 0 <= self.loss < 100):
            raise UsageError(f"--loss {self.loss:g}: percent, from 0 to below 100")

    def __str__(self) -> str:
        parts = [f"loss {self.loss:g} %"]
        if self.bandwidth is not None:
            parts.append(f"{self.bandwidth:g} Mbit/s")
        if self.delay is not None:
            parts.append(f"delay {self.delay}")
        return ", ".join(parts)


def impair(star: Star, impairment: Impairment) -> None:
    """Give every link of `star` its bandwidth, delay and loss.

    Loss and delay are netem's where the kernel has it; else loss is nftables' and a delay is refused.
    Raises UsageError, or SwitchReduceError if a command fails.
    """
    netem = bool(impairment.delay or impairment.loss) and has_netem(star)
    if impairment.delay is not None and not netem:
        raise UsageError("--delay: this kernel has no netem (module sch_netem), which delays packets")
    if impairment.bandwidth is not None or netem:
        _shape(star, impairment, netem)
    if impairment.loss and not netem:
        _lose(star, impairment.loss)


def has_netem(star: Star) -> bool:
    """Whether the kernel takes a netem qdisc; tried on the switch's loopback interface."""
    change = ("root", "netem", "delay", "1us")
    try:
        run(star.switch, "tc", "qdisc", "add", "dev", "lo", *change)
    except SwitchReduceError:
        return False
    run(star.switch, "tc", "qdisc", "del", "dev", "lo", "root")
    return True


def _shape(star: Star, impairment: Impairment, netem: bool) -> None:
    """TBF for bandwidth and netem for the rest, as Mininet sets them up, at both ends of each link."""
    # TBF rather than HTB, as it breaks up what a worker hands over in one piece (UDP_SEGMENT)
    wanted: dict[str, object] = {
        "bw": impairment.bandwidth, "use_tbf": True, "latency_ms": QUEUE_MS,
    }  # fmt: skip
    if netem:
        wanted |= {"delay": impairment.delay, "loss": impairment.loss or None}
    for ends in star.links:
        for interface in ends:
            # txo: Mininet turns checksum offload on where it is not told to leave it off
            said = interface.config(**wanted, txo=False)["tcoutputs"]
            complaints = [line.strip() for line in said if line.strip()]
            if complaints:
                raise SwitchReduceError(f"tc on {interface.name}: {complaints[0].splitlines()[-1]}")


def _lose(star: Star, percent: float) -> None:
    if shutil.which("nft") is None:
        raise UsageError(
            "--loss: this kernel has no netem (module sch_netem), and there is no nft in its place: "
            "apt-get install nftables"
        )
    for host, (outer, _) in zip(star.hosts, star.links, strict=True):
        lost = round(percent / 100 * LOSS_UNITS)
        rules = NFTABLES_RULES.format(interface=outer.name, units=LOSS_UNITS, lost=lost)
        run(host, "nft", rules)
