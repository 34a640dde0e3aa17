"""The compose file: what it asks of Docker, and the whole, where engine and images are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "docker-compose.yml", ROOT / "sim/compose/workers.yml"]
SWITCHES = ("bmv2", "embedded")
MAX_WORKERS = 8
RUN_TIMEOUT = 240.0  # s


def dotenv() -> dict[str, str]:
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def environment(**settings: str) -> dict[str, str]:
    """Without what a developer's environment says about the settings."""
    return {name: value for name, value in os.environ.items() if name not in dotenv()} | settings


def test_defaults_in_the_compose_files_are_those_of_dotenv():
    used: dict[str, str] = {"INPUT": ""}  # no default: without a file, /dev/null is mounted
    for file in FILES:
        for name, default in re.findall(r"\$\{([A-Z0-9_]+):-([^}]*)\}", file.read_text()):
            if name != "INPUT" and not re.fullmatch(r"WORKER\d", name):  # set by workers/N.env
                assert used.setdefault(name, default) == default
    listed = dotenv()
    del listed["COMPOSE_PROFILES"]  # Docker's own
    assert used == listed


@pytest.fixture(scope="module")
def compose() -> list[str]:
    if shutil.which("docker") is None:
        pytest.skip("there is no docker on PATH")
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose plugin")
    return ["docker", "compose"]


def config(compose: list[str], *options: str, **settings: str) -> dict[str, Any]:
    done = subprocess.run(
        [*compose, *options, "config", "--format", "json"],
        cwd=ROOT, env=environment(**settings), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    model: dict[str, Any] = json.loads(done.stdout)
    return model


def running(model: dict[str, Any]) -> set[str]:
    """Services that get a container."""
    return {
        name for name, service in model["services"].items() if service.get("deploy", {}).get("replicas", 1)
    }


@pytest.mark.parametrize("workers", range(1, MAX_WORKERS + 1))
def test_there_are_as_many_workers_as_asked_for_each_on_a_network_of_its_own(compose, workers):
    model = config(compose, WORKERS=str(workers))
    assert running(model) == {"links", "bmv2", "controller", *(f"worker{rank}" for rank in range(workers))}
    for rank in range(workers):
        service = model["services"][f"worker{rank}"]
        assert set(service["networks"]) == {"control", f"data{rank}"}
        assert service["environment"]["RANK"] == str(rank)
        assert service["environment"]["WORKERS"] == str(workers)


def test_four_workers_around_bmv2_are_the_default(compose):
    model = config(compose)
    assert running(model) == {"links", "bmv2", "controller", "worker0", "worker1", "worker2", "worker3"}
    assert model["services"]["bmv2"]["image"] == "p4lang/behavioral-model"


def test_a_profile_puts_the_embedded_switch_in_bmv2s_place(compose):
    for model in (
        config(compose, "--profile", "embedded"),
        config(compose, COMPOSE_PROFILES="embedded"),
    ):
        assert running(model) & set(SWITCHES) == {"embedded"}


@pytest.mark.parametrize("switch", SWITCHES)
def test_nothing_is_published_and_no_container_has_more_rights_than_it_needs(compose, switch):
    model = config(compose, "--profile", switch, WORKERS=str(MAX_WORKERS))
    for name, service in model["services"].items():
        assert not service.get("ports"), name
        assert not service.get("privileged"), name
        assert service["cap_drop"] == ["ALL"], name
        assert set(service.get("cap_add", ())) <= {"NET_ADMIN", "NET_RAW", "SETUID", "SETGID", "KILL"}, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    # the switch's own servers are on one network, with the controller alone
    assert [n for n, s in model["services"].items() if "p4runtime" in s.get("networks", ())] == [
        "controller", "links",
    ]  # fmt: skip
    assert all(model["networks"][network]["internal"] for network in ("p4runtime", "control"))


def test_image_names_and_addresses_are_variables(compose):
    model = config(
        compose, BMV2_IMAGE="mirror/bmv2:1", PYTHON_IMAGE="mirror/python:2",
        SWITCHREDUCE_IMAGE="mirror/ours:3", ADDRESSES="10.99",
    )  # fmt: skip
    for name, service in model["services"].items():
        if name == "bmv2":
            assert service["image"] == "mirror/bmv2:1"
        else:
            assert service["image"] == "mirror/ours:3"
    assert model["services"]["links"]["build"]["args"]["PYTHON_IMAGE"] == "mirror/python:2"
    assert "10.83" not in json.dumps(model)


def test_a_number_of_workers_that_is_none_is_refused(compose):
    done = subprocess.run(
        [*compose, "config", "--quiet"],
        cwd=ROOT,
        env=environment(WORKERS="9"),
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "workers/9.env" in done.stderr


# -- with an engine -------------------------------------------------------------------------------------


@pytest.fixture(params=SWITCHES)
def up(request, compose) -> Iterator[Any]:
    """Runs `docker compose up` around a switch, as a project of its own beside a user's."""
    images = [dotenv()["SWITCHREDUCE_IMAGE"], *([dotenv()["BMV2_IMAGE"]] if request.param == "bmv2" else [])]
    for image in images:
        done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no docker engine with image {image}: {done.stderr.strip()}")
    project = [*compose, "-p", f"switchreduce-test-{os.getpid()}", "--profile", request.param]

    def run(**settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*project, "up", "--pull", "never", "--no-build", "--exit-code-from", "worker0"],
            cwd=ROOT, env=environment(ADDRESSES="10.84", **settings), capture_output=True, text=True,
            timeout=RUN_TIMEOUT,
        )  # fmt: skip

    yield run
    env = environment(ADDRESSES="10.84")
    subprocess.run([*project, "down", "--timeout", "5"], cwd=ROOT, env=env, capture_output=True)
    left = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"name={project[3]}"], capture_output=True, text=True
    )
    assert left.stdout == ""


@pytest.mark.timeout(2 * RUN_TIMEOUT)
def test_containers_sum_a_users_array_exactly_on_a_lossy_network(up, tmp_path):
    path = tmp_path / "mine.npy"
    np.save(path, np.random.default_rng(1).standard_normal(100_000).astype(np.float32))
    done = up(WORKERS="3", LOSS="1", INPUT=str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(3):
        mine = [line for line in done.stdout.splitlines() if f"worker{rank}-1" in line]
        assert [line.split()[-1] for line in mine if re.search(r"\| (sketch|dense) ", line)] == ["yes", "yes"]


@pytest.mark.timeout(2 * RUN_TIMEOUT)
def test_an_input_that_is_none_ends_with_a_clear_line(up, tmp_path):
    path = tmp_path / "mine.npz"
    path.write_bytes(b"nonsense")
    path.chmod(0o644)
    done = up(WORKERS="2", INPUT=str(path))
    assert done.returncode == 1
    assert re.search(r"rank 0: error: cannot load '\S+mine\.npz': it is no intact \.npz file", done.stderr)
