// A program with one of everything that P4Runtime writes and reads, for the tests of the server. (Clone
// sessions have a program of their own, mirror.p4: cloning makes any program slow to compile.)
//
// Frames are Ethernet with IPv4 or without. Packet-outs carry packet_out_t in front and leave on the port in
// it.

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;
const bit<16> TYPE_IPV4 = 0x0800;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> unused;
}

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> tos;
    bit<16> total_length;
    bit<16> identification;
    bit<16> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t ethernet;
    ipv4_t ipv4;
}

struct metadata_t {
    bit<8> mark;
    bit<32> label;
}

parser ParseFrame(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            TYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control VerifyNothing(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(16, CounterType.packets_and_bytes) by_port;
    direct_counter(CounterType.packets_and_bytes) route_hits;
    register<bit<32>>(8) last_seen;

    action drop() {
        mark_to_drop(std);
    }
    action forward(bit<9> port) {
        std.egress_spec = port;
    }
    action rewrite_and_forward(bit<9> port, bit<48> destination) {
        std.egress_spec = port;
        hdr.ethernet.destination = destination;
    }
    action to_controller(bit<7> reason) {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = std.ingress_port;
        hdr.packet_in.reason = reason;
        std.egress_spec = CPU_PORT;
    }
    action multicast(bit<16> group) {
        std.mcast_grp = group;
    }
    action set_label(bit<32> label) {
        meta.label = label;
    }
    action set_mark(bit<8> mark) {
        meta.mark = mark;
    }

    table l2 {
        key = { hdr.ethernet.destination: exact; }
        actions = { forward; multicast; to_controller; @defaultonly drop; @tableonly set_mark; NoAction; }
        size = 16;
        default_action = drop();
    }
    table routes {
        key = { hdr.ipv4.destination: lpm; }
        actions = { forward; rewrite_and_forward; drop; NoAction; }
        size = 64;
        default_action = NoAction();
        counters = route_hits;
    }
    table acl {
        key = {
            hdr.ipv4.source: ternary;
            hdr.ipv4.ttl: range;
            hdr.ipv4.protocol: optional;
            std.ingress_port: exact;
        }
        actions = { drop; set_label; set_mark; NoAction; }
        size = 32;
        default_action = NoAction();
    }
    table known_types {
        key = { hdr.ethernet.ether_type: exact; }
        actions = { set_mark; NoAction; }
        const default_action = NoAction();
        const entries = {
            0x0800: set_mark(4);
            0x0806: set_mark(6);
        }
    }
    table always {
        actions = { set_mark; NoAction; }
        default_action = NoAction();
    }

    apply {
        by_port.count((bit<32>)std.ingress_port & 15);
        last_seen.write(0, (bit<32>)std.ingress_port);
        known_types.apply();
        always.apply();
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            l2.apply();
            if (hdr.ipv4.isValid()) {
                routes.apply();
                acl.apply();
            }
        }
    }
}

control Finish(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {}
}

control UpdateNothing(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control DeparseFrame(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(ParseFrame(), VerifyNothing(), Forward(), Finish(), UpdateNothing(), DeparseFrame()) main;
