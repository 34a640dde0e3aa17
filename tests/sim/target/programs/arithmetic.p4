// Every operator on fields of one word and of several.
#include "frame.p4"

header operands_t {
    bit<200> a; bit<200> b; bit<64> c; bit<64> d; bit<32> e; bit<32> f; bit<8> s; bit<8> unused;
    int<32> g; int<32> h; bit<256> k; bit<256> l; bit<512> m; bit<512> n;
}
header results_t {
    bit<200> add; bit<200> sub; bit<200> mul; bit<200> and_; bit<200> or_; bit<200> xor; bit<200> not_;
    bit<200> shl; bit<200> shr; bit<200> shl_13; bit<200> shr_77; bit<200> pick; bit<200> mixed; bit<200> slices;
    bit<64> add64; bit<64> sub64; bit<64> mul64; bit<64> shl64; bit<64> shr64; bit<64> middle;
    bit<128> joined; bit<32> sat_add; bit<32> sat_sub; int<32> ssat_add; int<32> ssat_sub;
    int<32> sra; int<64> extended; bit<64> average;
    bit<256> add256; bit<256> cut256; bit<512> wide_sum; bit<512> wide_shift; bit<512> wide_mul;
    bit<1> lt; bit<1> le; bit<1> eq; bit<1> ne; bit<1> lt64; bit<1> ge64; bit<1> slt; bit<1> wide_gt;
}
struct headers_t { operands_t o; results_t r; }
struct metadata_t {}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.o); transition accept; }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        operands_t o = hdr.o;
        hdr.r.setValid();
        hdr.r.add = o.a + o.b;
        hdr.r.sub = o.a - o.b;
        hdr.r.mul = o.a * o.b;
        hdr.r.and_ = o.a & o.b;
        hdr.r.or_ = o.a | o.b;
        hdr.r.xor = o.a ^ o.b;
        hdr.r.not_ = ~o.a;
        hdr.r.shl = o.a << o.s;
        hdr.r.shr = o.a >> o.s;
        hdr.r.shl_13 = o.a << 13;
        hdr.r.shr_77 = o.a >> 77;
        hdr.r.pick = o.s > 100 ? o.a : o.b;
        hdr.r.mixed = o.a + (bit<200>) o.c - (bit<200>) (o.e ++ o.f);
        hdr.r.slices = o.a;
        hdr.r.slices[99:36] = o.c;
        hdr.r.add64 = o.c + o.d;
        hdr.r.sub64 = o.c - o.d;
        hdr.r.mul64 = o.c * o.d;
        hdr.r.shl64 = o.c << o.s;
        hdr.r.shr64 = o.c >> o.s;
        hdr.r.middle = o.a[150:87];
        hdr.r.joined = o.d ++ o.c;
        hdr.r.sat_add = o.e |+| o.f;
        hdr.r.sat_sub = o.e |-| o.f;
        hdr.r.ssat_add = o.g |+| o.h;
        hdr.r.ssat_sub = o.g |-| o.h;
        hdr.r.sra = o.g >> o.s;
        hdr.r.extended = (int<64>) o.g;
        hdr.r.average = (bit<64>) (((bit<65>) o.c + (bit<65>) o.d) >> 1);
        hdr.r.add256 = o.k + o.l;
        hdr.r.cut256 = (o.k - o.l) >> 64;
        hdr.r.wide_sum = o.m + o.n - (bit<512>) o.k;
        hdr.r.wide_shift = (o.m << 200) | (o.n >> 212);
        hdr.r.wide_mul = o.m * o.n;
        hdr.r.lt = (bit<1>) (o.a < o.b);
        hdr.r.le = (bit<1>) (o.a <= o.b);
        hdr.r.eq = (bit<1>) (o.a == o.b);
        hdr.r.ne = (bit<1>) (o.k != o.l);
        hdr.r.lt64 = (bit<1>) (o.c < o.d);
        hdr.r.ge64 = (bit<1>) (o.c >= o.d);
        hdr.r.slt = (bit<1>) (o.g < o.h);
        hdr.r.wide_gt = (bit<1>) (o.m > o.n);
        hdr.o.setInvalid();
        standard.egress_spec = 1;
    }
}

control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
NO_CHECKSUMS
NO_EGRESS
V1Switch(P(), NoVerify(), I(), NoEgress(), NoUpdate(), D()) main;
