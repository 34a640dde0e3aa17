"""What an allreduce over processes came to: every rank's result checked, and the table that says so."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from switchreduce.worker.codec.reference import exact_allreduce, rounded_allreduce


@dataclass(frozen=True)
class Row:
    """One codec's run. Bytes are UDP payload that one worker sent, the mean over workers."""

    codec: str
    exact: bool
    bytes_sent: float
    ratio: float  # an array's bytes over bytes_sent
    seconds: float  # of the slowest worker
    retransmits: int  # of all workers
    max_error: float  # largest |result - float64 sum|
    error_bound: float  # what quantising and rounding allow there


@dataclass(frozen=True)
class Expected:
    """The bits that every rank must hold, and the largest |result - real sum| that was promised there."""

    result: np.ndarray
    bound: np.ndarray


def check(
    codecs: list[str],
    arrays: list[np.ndarray],
    outputs: dict[str, list[np.ndarray]],
    reports: list[dict[str, dict[str, float]]],
    op: str,
) -> list[Row]:
    """Compare every rank's output, bit for bit, with the exact result computed here without any of it."""
    flat = [array.reshape(-1) for array in arrays]
    truth = np.sum([array.astype(np.float64) for array in flat], axis=0)
    if op == "mean":
        truth /= len(flat)
    dense_bytes = arrays[0].nbytes
    rows = []
    for codec in codecs:
        expected = _expect(codec, flat, op)
        sent = sum(report[codec]["bytes_sent"] for report in reports) / len(reports)
        with np.errstate(invalid="ignore"):
            error = np.abs(expected.result.astype(np.float64) - truth)
        # a sum beyond the dtype is infinite, as NumPy's would be; its bits are checked, it has no error
        error[~np.isfinite(expected.result)] = 0
        worst = int(np.argmax(error)) if error.size else -1
        rows.append(
            Row(
                codec=codec,
                exact=is_exact(outputs[codec], expected, error, arrays[0].shape),
                bytes_sent=sent,
                ratio=dense_bytes / sent if sent else 0.0,
                seconds=max(report[codec]["seconds"] for report in reports),
                retransmits=int(sum(report[codec]["retransmits"] for report in reports)),
                max_error=float(error[worst]) if worst >= 0 else 0.0,
                error_bound=float(expected.bound[worst]) if worst >= 0 else 0.0,
            )
        )
    return rows


def _expect(codec: str, flat: list[np.ndarray], op: str) -> Expected:
    if codec != "exact" or flat[0].dtype.kind == "i":
        fixed = exact_allreduce(flat, op)
        return Expected(fixed.result, fixed.bound)
    result = rounded_allreduce(flat, op)
    half_ulp = np.spacing(np.abs(result)).astype(np.float64) / 2
    # what the float64 sum, which the result is compared with, may itself be off
    rounding = (
        len(flat) * np.finfo(np.float64).eps * np.sum([np.abs(x, dtype=np.float64) for x in flat], axis=0)
    )
    return Expected(result, half_ulp + rounding)


def is_exact(
    outputs: list[np.ndarray], expected: Expected, error: np.ndarray, shape: tuple[int, ...]
) -> bool:
    """Whether all ranks hold the expected bits, and these are as near the real sum as promised."""
    wanted = expected.result.tobytes()
    same = all(
        out.dtype == expected.result.dtype and out.shape == shape and out.tobytes() == wanted
        for out in outputs
    )
    return same and bool((error <= expected.bound).all())


def print_report(rows: list[Row], arrays: list[np.ndarray], setting: str, as_json: bool) -> int:
    """Print one JSON object, or a table under a line that ends with `setting`; returns the exit status."""
    exact = all(row.exact for row in rows)
    if as_json:
        print(json.dumps({"exact": exact, "rows": [asdict(row) for row in rows]}))
    else:
        print_table(rows, arrays, setting)
    return 0 if exact else 1


def print_table(rows: list[Row], arrays: list[np.ndarray], setting: str) -> None:
    nonzero = float(np.mean([np.count_nonzero(array) / max(array.size, 1) for array in arrays]))
    print(
        f"{len(arrays)} workers, {arrays[0].size:,} {arrays[0].dtype} each, {nonzero:.1%} non-zero; {setting}"
    )
    print(
        f"{'codec':8} {'bytes/worker':>13} {'uncompressed':>13} {'ratio':>7} {'seconds':>8} "
        f"{'retransmits':>11} {'max error':>10} {'allowed':>10}  exact"
    )
    for row in rows:
        print(
            f"{row.codec:8} {row.bytes_sent:>13,.0f} {arrays[0].nbytes:>13,} {row.ratio:>6.2f}x "
            f"{row.seconds:>8.3f} {row.retransmits:>11,} {row.max_error:>10.2e} {row.error_bound:>10.2e}  "
            f"{'yes' if row.exact else 'NO'}"
        )
