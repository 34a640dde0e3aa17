// Every frame is cloned to the ports of clone session 5; the original is dropped.

#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> ether_type;
}

@controller_header("packet_in")
header packet_in_t {
    bit<8> reason;
}

struct headers_t {
    packet_in_t packet_in;
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
    apply {
        clone(CloneType.I2E, 5);
        mark_to_drop(std);
    }
}

control Finish(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        hdr.packet_in.setValid();
        hdr.packet_in.reason = 6;
    }
}

control UpdateNothing(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control DeparseFrame(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
    }
}

V1Switch(ParseFrame(), VerifyNothing(), Forward(), Finish(), UpdateNothing(), DeparseFrame()) main;
