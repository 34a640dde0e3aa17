// What a host expects of the network beside aggregation: ARP, ping and IPv4 forwarding.
#ifndef HOSTS_P4
#define HOSTS_P4

#include "headers.p4"

const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;
const bit<8>  ICMP_ECHO_REPLY = 0;
const bit<8>  ICMP_ECHO_REQUEST = 8;

// Answers for the switch's own address and, as a proxy, for the hosts it forwards to.
control Arp(inout headers_t hdr, inout standard_metadata_t standard, out bool answered) {
    action reply(bit<48> mac) {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        bit<32> asked = hdr.arp.target_ip;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender_ip = asked;
        standard.egress_spec = standard.ingress_port;
    }

    table neighbours {
        key = { hdr.arp.target_ip: exact @name("address"); }
        actions = { reply; @defaultonly NoAction; }
        const default_action = NoAction;
        size = MAX_HOSTS;
    }

    apply {
        answered = false;
        if (hdr.arp.hardware_type == 1 && hdr.arp.protocol_type == ETHERTYPE_IPV4
                && hdr.arp.hardware_length == 6 && hdr.arp.protocol_length == 4
                && hdr.arp.operation == ARP_REQUEST) {
            answered = neighbours.apply().hit;
        }
    }
}

control Ping(inout headers_t hdr, inout standard_metadata_t standard) {
    apply {
        bit<48> mac = hdr.ethernet.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        bit<32> address = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = address;
        hdr.ipv4.ttl = 64;
        hdr.icmp.type = ICMP_ECHO_REPLY;
        // RFC 1624, equation 3: only the type changes, from 8 to 0, so ~m is 0xf7ff and m' is 0.
        bit<32> sum = (bit<32>) (~hdr.icmp.checksum) + 0xf7ff;
        sum = (sum & 0xffff) + (sum >> 16);
        hdr.icmp.checksum = ~sum[15:0];
        standard.egress_spec = standard.ingress_port;
    }
}

control Forward(inout headers_t hdr, inout standard_metadata_t standard, out bool routed) {
    action forward(bit<9> port, bit<48> source_mac, bit<48> destination_mac) {
        hdr.ethernet.src = source_mac;
        hdr.ethernet.dst = destination_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        standard.egress_spec = port;
    }

    table routes {
        key = { hdr.ipv4.dst: lpm @name("destination"); }
        actions = { forward; @defaultonly NoAction; }
        const default_action = NoAction;
        size = MAX_HOSTS;
    }

    apply {
        routed = routes.apply().hit;
    }
}

#endif
