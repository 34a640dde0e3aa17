"""Interfaces made into links of the switch, in a network namespace as Docker leaves it to a container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from ipaddress import IPv4Interface, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchreduce.errors import UsageError
from switchreduce.sim.compose.links import Link, find_links, parse_loss

WITHIN = IPv4Network("10.83.0.0/20")
MODULE = f"{sys.executable} -m switchreduce.sim.compose.links --within {WITHIN}"
TOOLS = ("unshare", "ip", "nft", "ethtool")


@given(st.permutations(range(16)), st.integers(2, 254))
def test_links_come_in_the_order_of_their_networks_whatever_their_names(names, host):
    links = [Link(f"eth{name}", IPv4Interface(f"10.83.{k}.{host}/24")) for k, name in enumerate(names)]
    others = [Link("lo", IPv4Interface("127.0.0.1/8")), Link("eth16", IPv4Interface("10.83.16.2/24"))]
    assert find_links([*others, *reversed(links)], WITHIN) == links


@pytest.mark.parametrize("text", ["", "x", "-1", "100", "nan", "inf"])
def test_a_loss_that_is_none_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match=f"^LOSS={text}: percent, from 0 to below 100$"):
        parse_loss(text)


@pytest.fixture
def container():
    """Runs a script where eth7 and eth0 are on data networks 0 and 1, and eth1 on another."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on PATH")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("this root may not make network namespaces")
    setup = "set -e; ip link set lo up; "
    addresses = {"eth7": "10.83.0.3/24", "eth0": "10.83.1.2/24", "eth1": "10.83.17.4/24"}
    for name, address in addresses.items():
        setup += f"ip link add {name} type veth peer name {name}peer; ip link set {name}peer up; "
        setup += f"ip address add {address} dev {name}; ip link set {name} up; "

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "--net", "sh", "-c", setup + script], capture_output=True, text=True, timeout=60
        )

    return run


def test_a_switch_gets_bare_ports_in_order(container):
    done = container(
        f"{MODULE} switch --ports 2 >/dev/null & pid=$!; "
        "while kill -0 $pid && ! ip link show port2 >&2; do sleep 0.1; done; "
        "ip -json address; kill $pid; wait $pid; echo stopped >&2"
    )
    assert done.stderr.strip().endswith("stopped"), done.stderr
    interfaces = {i["ifname"]: i for i in json.loads(done.stdout)}
    # veth ends were made in the order eth7, eth0: that of their networks
    assert interfaces["port1"]["link"] == "eth7peer"
    assert interfaces["port2"]["link"] == "eth0peer"
    for port in ("port1", "port2"):
        assert "UP" in interfaces[port]["flags"]
        assert not [a for a in interfaces[port]["addr_info"] if a["family"] == "inet"]
    assert [a["local"] for a in interfaces["eth1"]["addr_info"] if a["family"] == "inet"] == ["10.83.17.4"]


def test_a_worker_reaches_everything_through_the_switch_and_hands_it_single_frames(container):
    done = container(
        f"ip link del eth7; ip route add default via 10.83.1.1; {MODULE} worker --loss 2.5; "
        "ip -json route get 10.83.255.254; ethtool -k eth0; nft list ruleset"
    )
    assert done.returncode == 0, done.stderr
    route, rest = done.stdout.split("\n", 1)
    assert json.loads(route)[0]["dev"] == "eth0"
    assert "gateway" not in json.loads(route)[0]
    for feature in ("tx-checksumming", "generic-segmentation-offload", "generic-receive-offload"):
        assert f"{feature}: off" in rest
    assert rest.count("numgen random mod 1000000 < 25000 drop") == 2


def test_a_network_too_many_or_too_few_is_one_clear_line(container):
    for end, complaint in {
        "switch --ports 8": "there are 2 data networks, and 8 ports were asked for",
        "worker": "a worker has one data network, and here are 2",
    }.items():
        done = container(f"{MODULE} {end}")
        assert done.returncode == 1
        assert done.stderr == f"links: error: {complaint}\n"
