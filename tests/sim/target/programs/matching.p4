// Tables: every match kind, priorities, defaults, const entries, direct counters, hit and action_run.
#include "frame.p4"

header key_t { bit<8> a; bit<32> b; bit<16> c; bit<72> d; bit<8> which; }
header answer_t { bit<32> value; bit<8> hit; bit<8> run; }
struct headers_t { key_t key; answer_t answer; }
struct metadata_t {}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.key); transition accept; }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) hits;
    counter(4, CounterType.packets_and_bytes) misses;
    action answer(bit<32> value) { hdr.answer.value = value; }
    action twice(bit<16> value, bit<72> wide) { hdr.answer.value = (bit<32>) value * 2; hdr.key.d = wide; }
    action counted(bit<32> value) { hits.count(); hdr.answer.value = value; }
    action stop() { mark_to_drop(standard); exit; }
    table exact_wide {
        key = { hdr.key.a: exact; hdr.key.d: exact; }
        actions = { answer; twice; stop; }
        default_action = answer(7);
        size = 64;
    }
    table longest {
        key = { hdr.key.b: lpm; }
        actions = { counted; NoAction; }
        default_action = NoAction;
        counters = hits;
        size = 64;
    }
    table exact_longest {
        key = { hdr.key.a: exact; hdr.key.b: lpm; }
        actions = { answer; }
        size = 64;
    }
    table masks {
        key = { hdr.key.a: ternary; hdr.key.b: lpm; hdr.key.c: optional; }
        actions = { answer; twice; }
        size = 64;
    }
    table ranges {
        key = { hdr.key.c: range; hdr.key.a: ternary; hdr.key.isValid(): exact; }
        actions = { answer; }
        size = 64;
    }
    table fixed {
        key = { hdr.key.a: ternary; hdr.key.c: range; }
        actions = { answer; NoAction; }
        const default_action = answer(99);
        const entries = {
            (0x10 &&& 0xf0, 5 .. 9): answer(1);
            (0x12, _): answer(2);
            (_, 7): answer(3);
        }
    }
    apply {
        hdr.answer = { 0, 0, 0 };  // a header made valid has the fields that it happens to have
        if (hdr.key.which == 0) {
            switch (exact_wide.apply().action_run) {
                answer: { hdr.answer.run = 1; }
                twice: { hdr.answer.run = 2; }
                default: { hdr.answer.run = 3; }
            }
        } else if (hdr.key.which == 1) {
            if (longest.apply().hit) { hdr.answer.hit = 1; } else { misses.count(1); }
        } else if (hdr.key.which == 2) {
            if (!exact_longest.apply().hit) { hdr.answer.hit = 9; }
        } else if (hdr.key.which == 3) {
            masks.apply();
        } else if (hdr.key.which == 4) {
            ranges.apply();
        } else {
            fixed.apply();
        }
        standard.egress_spec = 3;
    }
}

control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
NO_CHECKSUMS
NO_EGRESS
V1Switch(P(), NoVerify(), I(), NoEgress(), NoUpdate(), D()) main;
