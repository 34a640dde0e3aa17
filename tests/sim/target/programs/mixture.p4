// What the other programs leave out: more hashes, header comparison, checksum over what was not
// parsed, exit inside an action, counters at egress, tables without a key and with a ternary one that counts.
#include "frame.p4"

header pair_t { bit<16> a; bit<16> b; }
header base_t { bit<8> op; bit<8> port; bit<32> x; bit<32> y; bit<16> check; }
header result_t {
    bit<16> ccitt; bit<16> custom16; bit<32> custom32; bit<8> bad;
    bit<8> flags; bit<8> mark; bit<32> reversed;
}
struct headers_t { base_t base; result_t result; pair_t[2] pairs; }
struct metadata_t { bit<8> mark; bool copied; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        transition select(hdr.base.op[1:0], hdr.base.port) {
            (0, _): accept;
            (1, 0 .. 7): one;
            (2 &&& 2, _): two;
            default: accept;
        }
    }
    state two { packet.extract(hdr.pairs.next); transition one; }
    state one { packet.extract(hdr.pairs.next); transition accept; }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum_with_payload(hdr.base.op < 128, { hdr.base.op, hdr.base.port, hdr.base.x, hdr.base.y },
                                     hdr.base.check, HashAlgorithm.csum16);
    }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) hits;
    action set_mark(bit<8> mark) { hits.count(); meta.mark = mark; }
    action leave() { hits.count(); hdr.result.mark = 0xee; exit; }
    action refuse() { hits.count(); mark_to_drop(standard); }
    action base_mark() { meta.mark = 1; }
    table always { actions = { base_mark; } const default_action = base_mark(); }
    table marks {
        key = { hdr.base.x: ternary; hdr.base.y: range; hdr.base.op: optional; }
        actions = { set_mark; leave; refuse; NoAction; }
        default_action = NoAction;
        counters = hits;
        size = 64;
    }
    apply {
        hdr.result = { 0, 0, 0, 0, 0, 0, 0 };
        standard.egress_spec = (bit<9>) hdr.base.port;
        hdr.result.bad = (bit<8>) standard.checksum_error;
        always.apply();
        if (marks.apply().hit) { hdr.result.flags = 0x80; }
        hdr.result.mark = meta.mark;
        hash(hdr.result.ccitt, HashAlgorithm.crc16_custom, (bit<16>) 0, { hdr.base.x, hdr.base.op }, (bit<32>) 65536);
        hash(hdr.result.custom16, HashAlgorithm.crc16, (bit<16>) 7, { hdr.base.y }, (bit<16>) 1000);
        hash(hdr.result.custom32, HashAlgorithm.crc32_custom, (bit<32>) 0, { hdr.base.x, hdr.base.y }, (bit<64>) 0x100000000);
        hdr.result.reversed = hdr.base.x[7:0] ++ hdr.base.x[15:8] ++ hdr.base.x[23:16] ++ hdr.base.x[31:24];
        if (hdr.pairs[0].isValid() && hdr.pairs[1].isValid()) {
            if (hdr.pairs[0] == hdr.pairs[1]) { hdr.result.flags = hdr.result.flags | 1; }
            pair_t held = hdr.pairs[0];
            hdr.pairs[0] = hdr.pairs[1];
            hdr.pairs[1] = held;
            if (held.a > held.b) { hdr.pairs[1].setInvalid(); }
        }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(16, CounterType.packets_and_bytes) by_port;
    apply {
        by_port.count((bit<32>) standard.egress_port);
        hdr.result.flags = hdr.result.flags | (bit<8>) (standard.egress_port ^ 0x40)[6:0];
        if (standard.egress_port == 13) { mark_to_drop(standard); }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum_with_payload(hdr.base.op[0:0] == 1, { hdr.base.op, hdr.base.port, hdr.base.x, hdr.base.y },
                                     hdr.base.check, HashAlgorithm.csum16);
    }
}

control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), Verify(), I(), E(), Update(), D()) main;
