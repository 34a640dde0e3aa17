"""p4runtime-shell's interactive shell, as it is, against the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scapy.all import IP, UDP, Ether

PROGRAMS = Path(__file__).parent / "programs"

SCRIPT = """\
te = table_entry["l2"](action="to_controller")
te.match["hdr.ethernet.destination"] = "02:00:00:00:ff:ff"
te.action["reason"] = "5"
te.insert()
te.read(lambda e: print("read:", e.action.action_name, e.match["hdr.ethernet.destination"].exact.value.hex()))
te.insert()
route = table_entry["routes"](action="forward")
route.match["hdr.ipv4.destination"] = "10.0.0.0/8"
route.action["port"] = "3"
route.insert()
route.counter_data
route.read(lambda e: print("route:", e.counter_data.packet_count))
dc = direct_counter_entry["route_hits"]
dc.read(lambda e: print("direct:", e.packet_count))
acl = table_entry["acl"](action="drop")
acl.match["hdr.ipv4.source"] = "10.0.0.0&&&255.0.0.0"
acl.match["hdr.ipv4.ttl"] = "1..5"
acl.match["hdr.ipv4.protocol"] = "17"
acl.match["std.ingress_port"] = "7"
acl.priority = 4
acl.insert()
acl.read(lambda e: print("acl:", e.priority, e.match["ttl"].range.high))
ce = counter_entry["by_port"]
ce.index = 2
ce.packet_count = 77
ce.modify()
ce.read(lambda e: print("counter:", e.packet_count))
mcg = multicast_group_entry(5).add(1, 1).add(2, 1)
mcg.insert()
multicast_group_entry().read(lambda e: print("group:", e.group_id, [r.egress_port for r in e.replicas]))
cs = clone_session_entry(6).add(510, 1)
cs.packet_length_bytes = 64
cs.insert()
clone_session_entry().read(lambda e: print("session:", e.session_id, e.packet_length_bytes))
de = table_entry["l2"](action="forward", is_default=True)
de.action["port"] = "1"
de.modify()
de.read(lambda e: print("default:", e.action.action_name))
import socket
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.connect(("127.0.0.1", {port}))
peer.settimeout(5)
_ = peer.send(b"for the controller")
packet_in.sniff(lambda m: print("packet-in:", m.packet.payload[-14:], m.packet.metadata[1].value), timeout=1)
po = packet_out(payload={frame!r}, egress_port="1", unused="0")
po.send()
print("packet-out:", peer.recv(100))
te.delete()
te.delete()
print("api", APIVersion())
exit()
"""

EXPECTED = [
    "read: Forward.to_controller 02000000ffff",
    "At index 0: ALREADY_EXISTS, 'table Forward.l2 has this entry already'",
    "route: 0",
    "direct: 0",
    r"acl: 4 b'\x05'",
    "counter: 77",
    "group: 5 [1, 2]",
    "session: 6 64",
    "default: Forward.forward",
    r"packet-in: b'the controller' b'\x05'",
    "packet-out: b'from the shell'",
    "At index 0: NOT_FOUND, 'table Forward.l2 has no such entry'",
    "api 1.4.1",
]


def test_a_session_of_everything(switch, tmp_path: Path) -> None:
    frame = bytes(Ether() / IP() / UDP() / b"from the shell")
    script = SCRIPT.format(port=switch.udp.address[1], frame=frame)
    config = f"{PROGRAMS / 'kitchen.p4info.txtpb'},{PROGRAMS / 'kitchen.json'}"
    shell = subprocess.run(
        [sys.executable, "-m", "p4runtime_sh", "--grpc-addr", switch.server.address, "--device-id", "3",
         "--election-id", "0,1", "--config", config],
        input=script, capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "IPYTHONDIR": str(tmp_path), "TERM": "dumb"},
    )  # fmt: skip
    output = shell.stdout + shell.stderr
    assert shell.returncode == 0, output
    for line in EXPECTED:
        assert line in output, output
