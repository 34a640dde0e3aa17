// Parser: masks, lookahead, stacks, variable length, verify, advance; and what actions do to stacks.
#include "frame.p4"

error { BadMagic }

header start_t { bit<4> kind; bit<12> number; bit<8> magic; bit<8> op; }
header label_t { bit<20> label; bit<3> cos; bit<1> bottom; bit<8> ttl; }
header options_t { bit<8> length; varbit<128> data; bit<8> tail; }
header word_t { bit<100> high; bit<28> low; }
header report_t { bit<32> fault; bit<16> payload_length; bit<8> depth; bit<8> valid; bit<32> seen; }
struct headers_t { report_t report; start_t first; label_t[4] labels; options_t options; word_t word; }
struct metadata_t { bit<32> seen; bit<8> count; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.first);
        verify(hdr.first.magic == 0x5a, error.BadMagic);
        transition select(hdr.first.kind, hdr.first.number) {
            (1, _): labels;
            (2, 0x100 &&& 0xf00): options;
            (2 .. 3, _): word;
            (4, _): peek;
            (5, _): skip;
            default: accept;
        }
    }
    state labels {
        packet.extract(hdr.labels.next);
        meta.count = meta.count + 1;
        transition select(hdr.labels.last.bottom) { 0: labels; default: accept; }
    }
    state options {
        bit<8> length = packet.lookahead<bit<8>>();
        packet.extract(hdr.options, (bit<32>) length * 8);
        transition word;
    }
    state word { packet.extract(hdr.word); transition accept; }
    state peek {
        meta.seen = packet.lookahead<bit<32>>();
        transition select(packet.lookahead<bit<12>>()) { 0xabc: word; default: accept; }
    }
    state skip { packet.advance((bit<32>) hdr.first.op * 8); transition word; }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.report.setValid();
        hdr.report.fault = 0;
        if (standard.parser_error == error.PacketTooShort) { hdr.report.fault = 1; }
        if (standard.parser_error == error.NoMatch) { hdr.report.fault = 2; }
        if (standard.parser_error == error.StackOutOfBounds) { hdr.report.fault = 3; }
        if (standard.parser_error == error.HeaderTooShort) { hdr.report.fault = 4; }
        if (standard.parser_error == error.BadMagic) { hdr.report.fault = 9; }
        hdr.report.payload_length = (bit<16>) standard.packet_length;
        hdr.report.depth = meta.count;
        hdr.report.seen = meta.seen;
        hdr.report.valid = 3w0 ++ (bit<1>) hdr.first.isValid() ++ (bit<1>) hdr.labels[0].isValid()
            ++ (bit<1>) hdr.labels[3].isValid() ++ (bit<1>) hdr.options.isValid() ++ (bit<1>) hdr.word.isValid();
        if (hdr.first.isValid() && hdr.first.kind == 1) {
            bit<8> op = hdr.first.op;
            if (op == 1) { hdr.labels.push_front(1); hdr.labels[0] = { 77, 0, 0, 0 }; }
            if (op == 2) { hdr.labels.pop_front(1); }
            if (op == 3) { hdr.labels.push_front(2); }
            if (op == 4) { hdr.labels.pop_front(3); }
            if (op == 5) { hdr.labels[2] = hdr.labels[0]; hdr.labels[1].setInvalid(); }
            if (op >= 16 && op < 20) { hdr.labels[op - 16].ttl = hdr.labels[0].ttl + 1; }
        }
        standard.egress_spec = 2;
    }
}

control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
NO_CHECKSUMS
NO_EGRESS
V1Switch(P(), NoVerify(), I(), NoEgress(), NoUpdate(), D()) main;
