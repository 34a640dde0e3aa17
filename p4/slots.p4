// The slot rule: what one contribution means to the slot it names.
//
// A slot's cell is (slot, version). It remembers which chunk it holds (`tags`) and which ranks are in it
// (`seen`). A rank uses (s, v) for a new chunk only after it has the result of the chunk in (s, 1 - v), so
// when a newer chunk arrives every rank holds the old result already and the cell may start over.
#ifndef SLOTS_P4
#define SLOTS_P4

#include "headers.p4"
#include "lanes.p4"

// Where the packet's chunk stands against the cell's.
const bit<2> AGE_CURRENT = 0;
const bit<2> AGE_NEWER = 1;
const bit<2> AGE_OLDER = 2;

control SlotState(in headers_t hdr, in membership_t member, in bit<32> cell,
                  out bit<8> lane_action, out bool deliver, out bool resend, out bit<32> refusal) {
    register<bit<104>>(SLOTS * VERSIONS) tags;  // op, generation, chunk
    register<ranks_t>(SLOTS * VERSIONS) seen;

    ranks_t ranks = 0;
    bit<2>  age = AGE_CURRENT;
    bool    same_op = true;
    bool    present = false;
    bool    was_complete = false;
    bool    completes = false;

    action start() {
        tags.write(cell, hdr.slot.op ++ hdr.slot.generation ++ hdr.slot.chunk);
        seen.write(cell, member.rank_bit);
        lane_action = LANES_START;
        deliver = completes;
    }

    action combine() {
        seen.write(cell, ranks | member.rank_bit);
        lane_action = hdr.slot.op;
        deliver = completes;
    }

    action recall() {
        lane_action = LANES_RECALL;
        resend = true;
    }

    action refuse(bit<32> reason) {
        refusal = reason;
    }

    table verdict {
        key = {
            age: exact;
            same_op: ternary;
            present: ternary;
            was_complete: ternary;
        }
        actions = { start; combine; recall; refuse; }
        const default_action = refuse(DROP_STALE);
        const entries = {
            // age        same_op present was_complete
            (AGE_NEWER,   _,      _,      _)     : start();
            (AGE_OLDER,   _,      _,      _)     : refuse(DROP_STALE);
            (AGE_CURRENT, false,  _,      _)     : refuse(DROP_OP_CONFLICT);
            (AGE_CURRENT, true,   false,  _)     : combine();
            (AGE_CURRENT, true,   true,   true)  : recall();
            (AGE_CURRENT, true,   true,   false) : refuse(DROP_DUPLICATE);
        }
    }

    apply {
        lane_action = LANES_NONE;
        deliver = false;
        resend = false;
        refusal = DROP_REASONS;

        bit<104> tag;
        tags.read(tag, cell);
        seen.read(ranks, cell);

        bit<32> ahead = hdr.slot.chunk - tag[31:0];
        if (tag[95:32] != hdr.slot.generation) {
            age = AGE_NEWER;
        } else if (ahead == 0) {
            age = AGE_CURRENT;
        } else if (ahead[31:31] == 0) {
            age = AGE_NEWER;
        } else {
            age = AGE_OLDER;
        }
        same_op = tag[103:96] == hdr.slot.op;
        present = ranks & member.rank_bit != 0;
        was_complete = ranks == member.full_mask;
        if (age == AGE_NEWER) {
            completes = member.rank_bit == member.full_mask;
        } else {
            completes = (ranks | member.rank_bit) == member.full_mask;
        }
        verdict.apply();
    }
}

#endif
