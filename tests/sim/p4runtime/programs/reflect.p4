// The smallest program that answers: every frame leaves on the port it came from, addresses swapped.

#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> ether_type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {}

parser ParseFrame(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control VerifyNothing(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(1, CounterType.packets) reflected;

    apply {
        bit<48> source = hdr.ethernet.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = source;
        std.egress_spec = std.ingress_port;
        reflected.count(0);
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
        packet.emit(hdr.ethernet);
    }
}

V1Switch(ParseFrame(), VerifyNothing(), Forward(), Finish(), UpdateNothing(), DeparseFrame()) main;
