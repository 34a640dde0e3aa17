// Lane-wise sum, or and maximum on 256 lanes of 32 bits, 64 to a word, kept in registers.
#include "frame.p4"

const bit<64> TOP_2 = 0x8000000080000000;
const bit<256> TOP_8 = TOP_2 ++ TOP_2 ++ TOP_2 ++ TOP_2;
const bit<1024> TOP_32 = TOP_8 ++ TOP_8 ++ TOP_8 ++ TOP_8;
const bit<2048> H = TOP_32 ++ TOP_32;
const bit<2048> M = ~H;

header request_t { bit<8> op; bit<8> cell; bit<16> unused; }
header lanes_t { bit<2048> w0; bit<2048> w1; bit<2048> w2; bit<2048> w3; }
struct headers_t { request_t request; lanes_t lanes; }
struct metadata_t {}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.request); packet.extract(hdr.lanes); transition accept; }
}

#define EACH(F) F(0) F(1) F(2) F(3)
#define CELLS(k) register<bit<2048>>(200) r##k;
#define SUM(k) r##k.read(held, cell); \
    hdr.lanes.w##k = ((hdr.lanes.w##k & M) + (held & M)) ^ ((hdr.lanes.w##k ^ held) & H); r##k.write(cell, hdr.lanes.w##k);
#define OR(k) r##k.read(held, cell); hdr.lanes.w##k = hdr.lanes.w##k | held; r##k.write(cell, hdr.lanes.w##k);
#define MAX(k) r##k.read(held, cell); \
    pick = (hdr.lanes.w##k | H) - (held & M); \
    pick = ((hdr.lanes.w##k & ~held) | (~(hdr.lanes.w##k ^ held) & pick)) & H; \
    pick = pick | (pick - (pick >> 31)); \
    hdr.lanes.w##k = (hdr.lanes.w##k & pick) | (held & ~pick); r##k.write(cell, hdr.lanes.w##k);
#define STORE(k) r##k.write(cell, hdr.lanes.w##k);
#define FETCH(k) r##k.read(hdr.lanes.w##k, cell);
#define RIPPLE(k) r##k.read(held, cell); hdr.lanes.w##k = hdr.lanes.w##k + held; r##k.write(cell, hdr.lanes.w##k);

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    EACH(CELLS)
    bit<2048> held = 0;
    bit<2048> pick = 0;
    bit<32> cell = 0;
    action sum() { EACH(SUM) }
    action bitwise_or() { EACH(OR) }
    action maximum() { EACH(MAX) }
    action store() { EACH(STORE) }
    action fetch() { EACH(FETCH) }
    action ripple() { EACH(RIPPLE) }
    table act {
        key = { hdr.request.op: exact; }
        actions = { sum; bitwise_or; maximum; store; fetch; ripple; NoAction; }
        const default_action = NoAction;
        const entries = { 0: sum(); 1: bitwise_or(); 2: maximum(); 3: store(); 4: fetch(); 5: ripple(); }
    }
    apply {
        cell = (bit<32>) hdr.request.cell;
        act.apply();
        standard.egress_spec = standard.ingress_port;
    }
}

control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
NO_CHECKSUMS
NO_EGRESS
V1Switch(P(), NoVerify(), I(), NoEgress(), NoUpdate(), D()) main;
