// Lossless allreduce inside a switch: contributions of a job's ranks are combined in registers, and the
// packet that completes a chunk is multicast to all of them as the result.
#include <core.p4>
#include <v1model.p4>

#include "constants.p4"
#include "headers.p4"
#include "parser.p4"
#include "admission.p4"
#include "slots.p4"
#include "lanes.p4"
#include "hosts.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter((bit<32>) DROP_REASONS, CounterType.packets_and_bytes) drops;

    Admission() admission;
    Hello() hello;
    SlotState() slot_state;
    Lanes() lanes;
    Arp() arp;
    Ping() ping;
    Forward() forward;

    table local_addresses {
        key = { hdr.ipv4.dst: exact @name("address"); }
        actions = { NoAction; }
        const default_action = NoAction;
        size = 16;
    }

    action drop(bit<32> reason) {
        drops.count(reason);
        mark_to_drop(standard);
    }

    // A completed chunk leaves through the job's multicast group; a lost result is sent again to the one
    // rank that asked. Egress fills in the receiver.
    action address_result() {
        hdr.slot.kind = KIND_RESULT;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.ttl = 64;
        hdr.udp.src_port = hdr.udp.dst_port;
        hdr.udp.checksum = 0;  // none (RFC 768): it would cover lanes that have changed
        meta.endpoint = meta.member.endpoint;
    }

    action multicast_result() {
        address_result();
        standard.mcast_grp = meta.member.group;
    }

    action unicast_result() {
        address_result();
        standard.egress_spec = meta.member.port;
    }

    apply {
        bool done;
        if (standard.parser_error != error.NoError) {
            drop(DROP_PARSER);
        } else if (standard.checksum_error == 1) {
            drop(DROP_IP_CHECKSUM);
        } else if (hdr.arp.isValid()) {
            arp.apply(hdr, standard, done);
            if (!done) { drop(DROP_ARP); }
        } else if (!hdr.ipv4.isValid()) {
            drop(DROP_ETHERTYPE);
        } else if (hdr.ipv4.version != 4 || hdr.ipv4.ihl != 5) {
            drop(DROP_IP_OPTIONS);
        } else if (!local_addresses.apply().hit) {
            if (hdr.ipv4.ttl <= 1) {
                drop(DROP_TTL);
            } else {
                forward.apply(hdr, standard, done);
                if (!done) { drop(DROP_NO_ROUTE); }
            }
        } else if (hdr.icmp.isValid() && hdr.icmp.type == ICMP_ECHO_REQUEST && hdr.icmp.code == 0) {
            ping.apply(hdr, standard);
        } else if (!hdr.udp.isValid() || hdr.udp.dst_port != AGGREGATION_PORT) {
            drop(DROP_LOCAL);
        } else if (!hdr.slot.isValid() || hdr.slot.magic != MAGIC || hdr.slot.lane_count != LANES
                   || hdr.slot.version >= VERSIONS || hdr.slot.op > OP_MAX || hdr.slot.kind >= KIND_RESULT
                   || hdr.ipv4.total_length != SLOT_UDP_BYTES + 20 || hdr.ipv4.flags[0:0] == 1) {
            drop(DROP_MALFORMED);
        } else if (hdr.slot.kind == KIND_HELLO) {
            hello.apply(hdr, standard, done);
            if (!done) { drop(DROP_HELLO); }
        } else if (hdr.slot.kind != KIND_CONTRIBUTION) {
            drop(DROP_MALFORMED);
        } else {
            admission.apply(hdr, meta.member, done);
            if (!done) {
                drop(DROP_UNADMITTED);
            } else if (hdr.slot.slot >= meta.member.slot_count) {
                drop(DROP_SLOT_RANGE);
            } else {
                bool deliver;
                bool resend;
                bit<32> refusal;
                bit<16> index = meta.member.slot_base + hdr.slot.slot;
                meta.cell = ((bit<32>) index << 1) + (bit<32>) hdr.slot.version;
                slot_state.apply(hdr, meta.member, meta.cell, meta.lane_action, deliver, resend, refusal);
                lanes.apply(hdr.lanes, meta.lane_action, meta.cell);
                if (refusal != DROP_REASONS) {
                    drop(refusal);
                } else if (deliver) {
                    multicast_result();
                } else if (resend) {
                    unicast_result();
                } else {
                    mark_to_drop(standard);  // absorbed: the slot holds it now
                }
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(1, CounterType.packets_and_bytes) undeliverable;

    action send_to(bit<48> mac, bit<32> address, bit<16> udp_port, bit<8> rank) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = address;
        hdr.udp.dst_port = udp_port;
        hdr.slot.rank = rank;
    }

    // Each copy of a result goes to one rank: a multicast replica carries that rank's endpoint as its rid.
    table endpoints {
        key = { meta.endpoint: exact @name("endpoint"); }
        actions = { send_to; @defaultonly NoAction; }
        const default_action = NoAction;
        size = MAX_ENDPOINTS;
    }

    apply {
        if (standard.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = (bit<16>) standard.ingress_port;
            hdr.lanes.setInvalid();  // the controller needs to know where a rank is, not what it holds
        } else if (meta.endpoint != 0) {
            if (standard.egress_rid != 0) {
                meta.endpoint = standard.egress_rid;
            }
            if (!endpoints.apply().hit) {
                undeliverable.count(0);
                mark_to_drop(standard);
            }
        }
    }
}

V1Switch(PacketParser(), VerifyHeaderChecksum(), SwitchIngress(), SwitchEgress(), UpdateHeaderChecksum(),
         PacketDeparser()) main;
