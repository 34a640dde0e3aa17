// What every test program needs and none is about.
#ifndef FRAME_P4
#define FRAME_P4
#include <core.p4>
#include <v1model.p4>

#define NO_CHECKSUMS                                                       \
    control NoVerify(inout headers_t hdr, inout metadata_t meta) { apply {} } \
    control NoUpdate(inout headers_t hdr, inout metadata_t meta) { apply {} }

#define NO_EGRESS                                                                                        \
    control NoEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { \
        apply {}                                                                                         \
    }

#endif
