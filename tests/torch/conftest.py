from __future__ import annotations

import pytest

from tests.cluster import running_cluster
from tests.torch.ranks import Ranks


@pytest.fixture(scope="package")
def ranks():
    started = Ranks(3)
    yield started
    started.close()


@pytest.fixture(scope="package")
def cluster():
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="package")
def lossy_cluster():
    with running_cluster(loss=0.05, seed=11) as running:
        yield running
