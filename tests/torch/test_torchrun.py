"""torchrun's environment and its elastic restart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from switchreduce.errors import UsageError
from switchreduce.worker.pytorch.place import Options, job_name, number_from

SCRIPT = Path(__file__).with_name("restarting.py")


def test_a_killed_rank_is_restarted_with_the_others(cluster):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*torchrun, "--max-restarts", "1", "--monitor-interval", "0.1", str(SCRIPT)],
        env={**os.environ, "SWITCHREDUCE_CONTROLLER": cluster.controller, "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done, [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]") == 2
    assert "exitcode: -9" in done.stderr


def test_a_restart_is_another_job():
    first = {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "0"}
    again = first | {"TORCHELASTIC_RESTART_COUNT": "1"}
    static = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert len({job_name(first), job_name(again), job_name(static)}) == 3


def test_what_the_environment_lacks_is_said():
    with pytest.raises(UsageError, match="pass job="):
        job_name({"TORCHELASTIC_RUN_ID": "none"})
    with pytest.raises(UsageError, match="pass rank="):
        number_from("RANK", {})
    with pytest.raises(UsageError, match="'x'"):
        number_from("RANK", {"RANK": "x"})


def test_options_come_from_the_environment_where_none_are_given():
    environment = {"SWITCHREDUCE_CONTROLLER": "there:1", "SWITCHREDUCE_CODEC": "exact"}
    assert Options().controller_address(environment) == "there:1"
    assert Options("here:2").controller_address(environment) == "here:2"
    assert Options().codec_name(environment) == "exact"
    assert Options(codec="dense").codec_name(environment) == "dense"
    with pytest.raises(UsageError, match="nonfinite"):
        Options(nonfinite="ignore")
    with pytest.raises(UsageError, match="codec"):
        Options(codec="zip")


WITHOUT_TORCH = """
import sys
import time
from concurrent.futures import ThreadPoolExecutor
sys.modules["torch"] = None
import switchreduce
try:
    switchreduce.torch
except ImportError as error:
    print(error)
"""


def test_without_torch_the_message_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60)
    assert done.stdout == "switchreduce.torch needs PyTorch: pip install 'switchreduce[torch]'\n", done.stderr


def test_a_group_that_starts_again_is_another_job(monkeypatch):
    """Also where rank 1 is first and the store still has what the start before left."""
    torch_distributed = pytest.importorskip("torch.distributed")
    from switchreduce.worker.pytorch.backend import common_job

    store = torch_distributed.HashStore()
    names = []
    for restart in ("0", "0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        with ThreadPoolExecutor(2) as pool:
            late = pool.submit(common_job, store, "group", 1, 2)
            time.sleep(0.1)
            names.append({common_job(store, "group", 0, 2), late.result(10)})
    assert [len(pair) for pair in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3
