"""What ranks compare about a call."""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from switchreduce.errors import UsageError
from switchreduce.worker.calls import check_arguments, describe_call, flushes_subnormals

FLUSHING = """
import ctypes, mmap
import numpy as np
from switchreduce.worker.calls import describe_call

# ldmxcsr of the argument: what torch.set_flush_denormal and libraries built with -ffast-math do
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("4883ec08893c240fae14244883c408c3"))
set_mode = ctypes.CFUNCTYPE(None, ctypes.c_uint)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
x = np.ones(3, np.float32)
NORMAL, TO_ZERO, ARE_ZERO = 0x1F80, 0x8000, 0x0040
specs = []
for mode in (NORMAL, NORMAL | TO_ZERO, NORMAL | ARE_ZERO, NORMAL | TO_ZERO | ARE_ZERO):
    set_mode(mode)
    spec = describe_call(0, [x], "sum", "auto")
    set_mode(NORMAL)
    specs.append(spec)
assert [spec.flushing for spec in specs] == [False, True, True, True]
assert specs[0].fingerprint().tolist() != specs[1].fingerprint().tolist()
assert "subnormals" in str(specs[1])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets a register of x86")
def test_a_rank_whose_processor_flushes_subnormals_makes_another_call():
    """Its results could differ from the other ranks' in the last bits, so it must not go unnoticed."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", FLUSHING], cwd=root, check=True, timeout=100)


def test_this_processor_does_not_flush():
    with np.errstate(all="raise"):
        assert not flushes_subnormals()


@pytest.mark.parametrize("op", [np.array(["sum", "mean"]), "\ud800", 3, None, ["sum"]])
def test_any_op_can_be_described_and_is_refused(op):
    spec = describe_call(0, [np.ones(3, np.float32)], op, "auto")
    assert spec.fingerprint().shape == (2,)
    assert isinstance(check_arguments(np.ones(3, np.float32), spec), UsageError)
