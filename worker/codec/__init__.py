"""The codec: exact, compressed, homomorphic coding of gradient blocks. Pure array functions.

An array is cut into blocks, and each block takes these steps (every rank takes them alike; "switch" is
where the lanes of all ranks are combined):

1. ``scan``: a key per block                         -> switch MAX -> ``BlockScale.from_key``
2. ``quantise``, ``UnionSearch``: the rank's index   -> switch OR  -> union, in one or more levels
3. ``plan_packed`` or ``plan_sketch``: the form for the union, found by every rank alone
4. ``encode``: the rank's lanes                      -> switch SUM -> ``decode`` writes the exact result

A job without an index skips steps 2 and 3: ``plan_dense``, ``encode_values``. A sketch may also be sent
together with the index (blind.py). The exact codec has steps of its own (exact.py).

Lanes are uint32 in native byte order. ``reference`` states the result in plain NumPy.
"""

from switchreduce.worker.codec.arrays import (
    BLOCK,
    BLOCK_MULTIPLE,
    DTYPES,
    Workspace,
    block_count,
    index_lanes,
)
from switchreduce.worker.codec.blind import collect_blind, part_of, peel_blind, plan_blind
from switchreduce.worker.codec.encoding import encode, encode_values
from switchreduce.worker.codec.exact import compose, digitise, list_values
from switchreduce.worker.codec.exact_scale import EXACT_KEYS, ExactScale, ExactScan, scan_exact
from switchreduce.worker.codec.index import FLAT, SHAPES, Occupancy, Shape, UnionSearch, best_shape, look
from switchreduce.worker.codec.plan import Form, Plan, plan_dense, plan_empty, plan_packed, plan_sketch
from switchreduce.worker.codec.quantised import QuantisedBlock, quantise
from switchreduce.worker.codec.reference import ExactResult, exact_allreduce, rounded_allreduce
from switchreduce.worker.codec.results import Op, Sums, collect, decode, write
from switchreduce.worker.codec.scale import BlockScale, Scan, scan
from switchreduce.worker.codec.warm import warm_up, warm_up_exact

__all__ = [
    "BLOCK",
    "BLOCK_MULTIPLE",
    "DTYPES",
    "EXACT_KEYS",
    "FLAT",
    "SHAPES",
    "BlockScale",
    "ExactResult",
    "ExactScale",
    "ExactScan",
    "Form",
    "Occupancy",
    "Op",
    "Plan",
    "QuantisedBlock",
    "Scan",
    "Shape",
    "Sums",
    "UnionSearch",
    "Workspace",
    "best_shape",
    "block_count",
    "collect",
    "collect_blind",
    "compose",
    "decode",
    "digitise",
    "encode",
    "encode_values",
    "exact_allreduce",
    "index_lanes",
    "list_values",
    "look",
    "part_of",
    "peel_blind",
    "plan_blind",
    "plan_dense",
    "plan_empty",
    "plan_packed",
    "plan_sketch",
    "quantise",
    "rounded_allreduce",
    "scan",
    "scan_exact",
    "warm_up",
    "warm_up_exact",
    "write",
]
