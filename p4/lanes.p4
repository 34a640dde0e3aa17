// What happens to a packet's lanes. Both layouts offer the control Lanes; a build has one of them.
#ifndef LANES_P4
#define LANES_P4

#include "constants.p4"

// Combining uses the op itself as the action.
const bit<8> LANES_SUM = OP_SUM;
const bit<8> LANES_OR = OP_OR;
const bit<8> LANES_MAX = OP_MAX;
const bit<8> LANES_START = 3;   // the cell takes the packet's lanes
const bit<8> LANES_RECALL = 4;  // the packet takes the cell's lanes
const bit<8> LANES_NONE = 5;

#ifdef LAYOUT_WIDE
#include "lanes_wide.p4"
#else
#include "lanes_narrow.p4"
#endif

control Lanes(inout lanes_h lanes, in bit<8> lane_action, in bit<32> cell) {
    LANE_REGISTERS

    action sum() { SUM_LANES }
    action bitwise_or() { OR_LANES }
    action maximum() { MAX_LANES }
    action start() { START_LANES }
    action recall() { RECALL_LANES }

    table act {
        key = { lane_action: exact; }
        actions = { sum; bitwise_or; maximum; start; recall; NoAction; }
        const default_action = NoAction;
        const entries = {
            LANES_SUM: sum();
            LANES_OR: bitwise_or();
            LANES_MAX: maximum();
            LANES_START: start();
            LANES_RECALL: recall();
        }
    }

    apply {
        act.apply();
    }
}

#endif
