// Who may contribute, and where a rank's hello goes while its job is forming.
#ifndef ADMISSION_P4
#define ADMISSION_P4

#include "headers.p4"

control Admission(in headers_t hdr, inout membership_t member, out bool admitted) {
    direct_counter(CounterType.packets_and_bytes) contributions;

    action admit(ranks_t rank_bit, ranks_t full_mask, bit<16> slot_base, bit<16> slot_count,
                 bit<16> group, bit<16> endpoint, bit<9> port) {
        contributions.count();
        member.rank_bit = rank_bit;
        member.full_mask = full_mask;
        member.slot_base = slot_base;
        member.slot_count = slot_count;
        member.group = group;
        member.endpoint = endpoint;
        member.port = port;
    }

    table members {
        key = {
            hdr.slot.job: exact @name("job");
            hdr.slot.generation: exact @name("generation");
            hdr.slot.rank: exact @name("rank");
            hdr.ipv4.src: exact @name("source_address");
            hdr.udp.src_port: exact @name("source_port");
        }
        actions = { admit; @defaultonly NoAction; }
        const default_action = NoAction;
        counters = contributions;
        size = MAX_ENDPOINTS;
    }

    apply {
        admitted = members.apply().hit;
    }
}

control Hello(in headers_t hdr, inout standard_metadata_t standard, out bool punted) {
    action punt() {
        standard.egress_spec = CPU_PORT;
    }

    table forming_jobs {
        key = {
            hdr.slot.job: exact @name("job");
            hdr.slot.generation: exact @name("generation");
        }
        actions = { punt; @defaultonly NoAction; }
        const default_action = NoAction;
        size = MAX_JOBS;
    }

    apply {
        punted = forming_jobs.apply().hit;
    }
}

#endif
