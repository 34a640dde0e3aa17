// Parser, deparser and the IPv4 checksum.
#ifndef PARSER_P4
#define PARSER_P4

#include "headers.p4"

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP: parse_arp;
            default: accept;
        }
    }

    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    // Options and later fragments end parsing here: what would follow is not a transport header.
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0, PROTOCOL_ICMP): parse_icmp;
            (4, 5, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }

    // Only a datagram of exactly the right size can be ours; anything else to this port stays payload,
    // which ingress drops or, between two hosts, forwards.
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port, hdr.udp.length) {
            (AGGREGATION_PORT, SLOT_UDP_BYTES): check_size;
            default: accept;
        }
    }

    state check_size {
        transition select(standard.packet_length) {
            SLOT_FRAME_BYTES: parse_slot;
            default: accept;
        }
    }

    state parse_slot {
        packet.extract(hdr.slot);
        packet.extract(hdr.lanes);
        transition accept;
    }
}

control VerifyHeaderChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset,
              hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control UpdateHeaderChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset,
              hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

#endif
