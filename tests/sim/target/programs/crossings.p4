// What the requests of traffic.p4 do together: every bit of `ingress` and `egress` asks for one more thing.
#include "frame.p4"

header order_t {
    bit<8> ingress; bit<8> egress; bit<8> port; bit<8> group; bit<8> session; bit<8> rounds; bit<8> length;
    bit<8> mark;
}
header trace_t {
    bit<32> instance; bit<32> length; bit<16> rid; bit<16> group; bit<16> ingress_port; bit<16> spec;
    bit<16> port; bit<16> seen; bit<8> one; bit<8> two; bit<8> fault; bit<8> unused;
}
struct headers_t { trace_t[1] traces; order_t order; }
struct metadata_t {
    @field_list(1, 3) bit<8> one;
    @field_list(2, 3) bit<8> two;
    @field_list(3) bit<16> seen;
    bit<8> lost;
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        meta.lost = meta.lost + 1;
        packet.extract(hdr.order);
        transition accept;
    }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        meta.one = meta.one + 1;
        meta.two = meta.two + 16;
        meta.seen = meta.seen + (bit<16>) standard.instance_type * 100 + (bit<16>) standard.packet_length;
        standard.egress_spec = (bit<9>) hdr.order.port;
        if (hdr.order.ingress[0:0] == 1) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.order.session, 1);
        }
        if (hdr.order.ingress[1:1] == 1) { standard.mcast_grp = (bit<16>) hdr.order.group; }
        if (hdr.order.ingress[2:2] == 1) { mark_to_drop(standard); }
        if (hdr.order.ingress[3:3] == 1 && standard.instance_type == 0) {
            hdr.order.mark = hdr.order.mark + 1;
            resubmit_preserving_field_list(2);
        }
        if (hdr.order.ingress[4:4] == 1) { truncate((bit<32>) hdr.order.length); }
        if (hdr.order.ingress[5:5] == 1) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.order.session + 1, 3);
        }
        if (hdr.order.ingress[6:6] == 1) { standard.egress_spec = 511; }
        meta.one = meta.one + 2;
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.order.mark = hdr.order.mark + 16;
        hdr.traces[0] = { standard.instance_type, standard.packet_length, standard.egress_rid, standard.mcast_grp,
                          (bit<16>) standard.ingress_port, (bit<16>) standard.egress_spec,
                          (bit<16>) standard.egress_port, meta.seen, meta.one, meta.two, meta.lost, 0 };
        if (hdr.order.egress[0:0] == 1 && standard.instance_type != 2) {
            clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.order.session, 2);
        }
        if (hdr.order.egress[1:1] == 1 && hdr.order.rounds != 0 && standard.egress_rid < 2
                && standard.instance_type != 1 && standard.instance_type != 2) {
            hdr.order.rounds = hdr.order.rounds - 1;
            recirculate_preserving_field_list(3);
        }
        if (hdr.order.egress[2:2] == 1) { truncate((bit<32>) hdr.order.length); }
        if (hdr.order.egress[3:3] == 1) { mark_to_drop(standard); }
        if (hdr.order.egress[4:4] == 1) { hdr.traces[0].setInvalid(); }
        meta.two = meta.two + 1;
    }
}

// The order comes first, so that a packet that goes round is parsed alike.
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.order); packet.emit(hdr.traces); }
}
NO_CHECKSUMS
V1Switch(P(), NoVerify(), I(), E(), NoUpdate(), D()) main;
