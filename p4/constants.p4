// Every number of the protocol, once. `make p4` copies the constants of this
// file into build/manifest.json, where Python reads them.
#ifndef CONSTANTS_P4
#define CONSTANTS_P4

// LANES (32-bit values in a packet) and LAYOUT_WIDE or LAYOUT_NARROW come from the build's -D flags.

const bit<16> AGGREGATION_PORT = 21330;  // UDP, on the switch's aggregation address
const bit<16> MAGIC = 0x5352;            // "SR", first in every packet

const bit<9> CPU_PORT = 510;  // where packets for the controller leave: simple_switch_grpc --cpu-port 510

const int SLOTS = 1024;     // slots of one switch, shared by its jobs
const int VERSIONS = 2;     // of each slot
const int MAX_RANKS = 64;   // of one job: the width of `seen`
const int MAX_JOBS = 256;
const int MAX_ENDPOINTS = 4096;
const int MAX_HOSTS = 1024;

// What a packet is for.
const bit<8> KIND_HELLO = 1;         // worker -> switch -> controller: here is where I am
const bit<8> KIND_CONTRIBUTION = 2;  // worker -> switch
const bit<8> KIND_RESULT = 3;        // switch -> worker

// How lanes combine.
const bit<8> OP_SUM = 0;  // modulo 2^32
const bit<8> OP_OR = 1;
const bit<8> OP_MAX = 2;  // unsigned

// Why a packet was dropped: the indexes of the counter `drops`.
const bit<32> DROP_PARSER = 0;        // too short for its own headers
const bit<32> DROP_IP_CHECKSUM = 1;
const bit<32> DROP_IP_OPTIONS = 2;    // options or a version other than 4
const bit<32> DROP_ETHERTYPE = 3;     // neither IPv4 nor ARP
const bit<32> DROP_ARP = 4;           // not a request for an address known here
const bit<32> DROP_TTL = 5;
const bit<32> DROP_NO_ROUTE = 6;
const bit<32> DROP_LOCAL = 7;         // for the switch itself, but nothing it answers
const bit<32> DROP_MALFORMED = 8;     // to the aggregation port, but not one of its packets
const bit<32> DROP_HELLO = 9;         // hello for no job that is forming
const bit<32> DROP_UNADMITTED = 10;   // no such (job, generation, rank, address, port)
const bit<32> DROP_SLOT_RANGE = 11;
const bit<32> DROP_STALE = 12;        // for an older chunk than the slot holds
const bit<32> DROP_DUPLICATE = 13;    // already added; the sum is not complete yet
const bit<32> DROP_OP_CONFLICT = 14;  // the slot's chunk combines by another op
const bit<32> DROP_REASONS = 15;

#endif
