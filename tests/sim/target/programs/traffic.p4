// What happens to a packet between and after the pipelines.
#include "frame.p4"

header order_t {
    bit<8> op; bit<8> port; bit<16> group; bit<16> length; bit<8> rounds; bit<8> unused;
}
header trace_t { bit<32> instance; bit<16> rid; bit<16> kept; bit<32> length; bit<8> port; bit<8> ingress_port; }
struct headers_t { trace_t trace; order_t order; }
struct metadata_t {
    @field_list(1) bit<16> kept;
    bit<16> lost;
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.order); transition accept; }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        meta.lost = 5;
        standard.egress_spec = (bit<9>) hdr.order.port;
        if (hdr.order.op == 1) {
            standard.mcast_grp = hdr.order.group;
        } else if (hdr.order.op == 2) {
            meta.kept = 0x1234;
            clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.order.group, 1);
            hdr.order.unused = 1;
        } else if (hdr.order.op == 3) {
            if (standard.instance_type == 0) {
                meta.kept = meta.kept + 3;
                hdr.order.unused = 9;
                resubmit_preserving_field_list(1);
            }
        } else if (hdr.order.op == 4) {
            truncate((bit<32>) hdr.order.length);
        } else if (hdr.order.op == 5) {
            mark_to_drop(standard);
        } else if (hdr.order.op == 6) {
            standard.mcast_grp = hdr.order.group;
            mark_to_drop(standard);
        }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.order.op == 7 && hdr.order.rounds != 0) {
            hdr.order.rounds = hdr.order.rounds - 1;
            meta.kept = meta.kept + 1;
            recirculate_preserving_field_list(1);
        } else if (hdr.order.op == 8 && standard.instance_type == 0) {
            meta.kept = 0x77;
            clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.order.group, 1);
            hdr.order.unused = 2;
            mark_to_drop(standard);
        } else {
            hdr.trace.setValid();
            hdr.trace.instance = standard.instance_type;
            hdr.trace.rid = standard.egress_rid;
            hdr.trace.kept = meta.kept + (meta.lost << 15);
            hdr.trace.length = standard.packet_length;
            hdr.trace.port = (bit<8>) standard.egress_port;
            hdr.trace.ingress_port = (bit<8>) standard.ingress_port;
            if (standard.egress_port == 9) { mark_to_drop(standard); }
        }
    }
}

control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
NO_CHECKSUMS
V1Switch(P(), NoVerify(), I(), E(), NoUpdate(), D()) main;
