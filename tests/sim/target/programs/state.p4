// Registers, counters, hashes and checksums.
#include "frame.p4"

header base_t { bit<8> op; bit<32> index; bit<48> value; }
header sums_t { bit<4> x; bit<12> y; bit<16> check; bit<24> z; bit<8> w; }
header wide_t { bit<256> data; }
header hashes_t {
    bit<16> crc16; bit<32> crc32; bit<16> csum; bit<64> id; bit<16> folded; bit<32> bounded; bit<8> bad;
    bit<16> with_payload;
}
struct headers_t { base_t base; sums_t sums; wide_t wide; hashes_t hashes; }
struct metadata_t { bit<13> odd; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        transition select(hdr.base.op) { 0: sums; 1: sums; 2: wide; default: accept; }
    }
    state sums { packet.extract(hdr.sums); transition accept; }
    state wide { packet.extract(hdr.wide); transition accept; }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.base.op == 1, { hdr.sums.x, hdr.sums.y, hdr.sums.z, hdr.sums.w }, hdr.sums.check,
                        HashAlgorithm.csum16);
    }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<48>>(10) small;
    register<bit<256>>(10) large;
    counter(10, CounterType.packets_and_bytes) seen;
    apply {
        seen.count(hdr.base.index);
        hdr.hashes.setValid();
        hdr.hashes.bad = (bit<8>) standard.checksum_error;
        meta.odd = 0x1abc;
        hash(hdr.hashes.crc16, HashAlgorithm.crc16, (bit<16>) 0, { hdr.base.value, meta.odd }, (bit<32>) 65536);
        hash(hdr.hashes.crc32, HashAlgorithm.crc32, (bit<32>) 0, { hdr.base.index, hdr.base.value },
             (bit<64>) 0x100000000);
        hash(hdr.hashes.csum, HashAlgorithm.csum16, (bit<16>) 0, { hdr.base.value, hdr.base.op }, (bit<32>) 65536);
        hash(hdr.hashes.id, HashAlgorithm.identity, (bit<64>) 0, { hdr.base.value }, (bit<64>) 0xffffffffffffffff);
        hash(hdr.hashes.folded, HashAlgorithm.xor16, (bit<16>) 0, { hdr.base.value, hdr.base.op }, (bit<32>) 65536);
        hash(hdr.hashes.bounded, HashAlgorithm.crc32, (bit<32>) 1000, { hdr.base.value }, (bit<32>) 77);
        if (hdr.base.op == 2) {
            bit<256> held;
            large.read(held, hdr.base.index);
            large.write(hdr.base.index, hdr.wide.data);
            hdr.wide.data = held;
        } else {
            bit<48> held;
            small.read(held, hdr.base.index);
            small.write(hdr.base.index, hdr.base.value);
            hdr.base.value = held;
        }
        standard.egress_spec = 1;
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.base.op == 0, { hdr.sums.x, hdr.sums.y, hdr.sums.z, hdr.sums.w }, hdr.sums.check,
                        HashAlgorithm.csum16);
        update_checksum_with_payload(true, { hdr.base.op, hdr.base.value, hdr.sums.z },
                                     hdr.hashes.with_payload, HashAlgorithm.csum16);
    }
}

control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
NO_EGRESS
V1Switch(P(), Verify(), I(), NoEgress(), Update(), D()) main;
