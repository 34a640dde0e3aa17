// The packet. Python derives its NumPy dtype and its Scapy layer from the compiled form of these types.
#ifndef HEADERS_P4
#define HEADERS_P4

#include "constants.p4"
#include "repeat.p4"

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8>  hardware_length;
    bit<8>  protocol_length;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender_ip;
    bit<48> target_mac;
    bit<32> target_ip;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_length;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header icmp_h {
    bit<8>  type;
    bit<8>  code;
    bit<16> checksum;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// In front of the lanes. 24 bytes, so that the lanes stay aligned in a datagram.
header slot_h {
    bit<16> magic;
    bit<8>  kind;
    bit<8>  op;
    bit<16> lane_count;  // that follow; a packet for another build is malformed here
    bit<16> job;
    bit<8>  rank;        // sender of a contribution, receiver of a result
    bit<8>  version;     // of the slot: 0 or 1
    bit<16> slot;        // counted from the start of the job's range
    bit<32> chunk;       // serial number (RFC 1982); in a hello, the rank's ticket
    bit<64> generation;  // of the job: random, never 0, so no stale register matches it
}

// The lanes, each 32 bits in network order, are the same bytes in both layouts.
header lanes_h {
#ifdef LAYOUT_WIDE
#define DECLARE_WORD(k) bit<2048> word_##k;
    EACH_WORD(DECLARE_WORD)
#else
#define DECLARE_LANE(k) bit<32> lane_##k;
    EACH_LANE(DECLARE_LANE)
#endif
}

@controller_header("packet_in")
header packet_in_h {
    bit<16> ingress_port;
}

struct headers_t {
    packet_in_h packet_in;
    ethernet_h  ethernet;
    arp_h       arp;
    ipv4_h      ipv4;
    icmp_h      icmp;
    udp_h       udp;
    slot_h      slot;
    lanes_h     lanes;
}

typedef bit<(MAX_RANKS)> ranks_t;  // a bit a rank

// What admission says of a contribution's sender.
struct membership_t {
    ranks_t rank_bit;
    ranks_t full_mask;   // every rank's bit
    bit<16> slot_base;
    bit<16> slot_count;
    bit<16> group;       // multicast group of the job's ranks
    bit<16> endpoint;    // key of the egress rewrite
    bit<9>  port;
}

struct metadata_t {
    membership_t member;
    bit<32>      cell;        // index into every slot register
    bit<8>       lane_action; // LANES_*, see lanes.p4
    bit<16>      endpoint;    // receiver of this copy of a result; 0: not a result
}

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8>  PROTOCOL_ICMP = 1;
const bit<8>  PROTOCOL_UDP = 17;

// Sizes in bytes of a packet that carries lanes, from the outside in.
const bit<32> SLOT_FRAME_BYTES = 14 + 20 + 8 + 24 + 4 * LANES;
const bit<16> SLOT_UDP_BYTES = 8 + 24 + 4 * LANES;

#endif
