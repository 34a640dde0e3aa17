// 64 lanes in one field and one register cell. BMv2 pays per primitive, not per bit, so a few operations on
// 2,048 bits beat hundreds on 32.
//
// No carry may leave a lane. With MAGNITUDE = 0x7fffffff and TOP = 0x80000000 in every lane:
//   sum      ((a & MAGNITUDE) + (b & MAGNITUDE)) ^ ((a ^ b) & TOP)
//   maximum  (a | TOP) - (b & MAGNITUDE) borrows from no other lane, and its top bit says whether the low
//            31 bits of a reach those of b; the lanes' own top bits decide first. That bit is then spread
//            over its lane and picks a or b.
#ifndef LANES_WIDE_P4
#define LANES_WIDE_P4

const bit<64> TOP_2 = 0x8000000080000000;
const bit<128> TOP_4 = TOP_2 ++ TOP_2;
const bit<256> TOP_8 = TOP_4 ++ TOP_4;
const bit<512> TOP_16 = TOP_8 ++ TOP_8;
const bit<1024> TOP_32 = TOP_16 ++ TOP_16;
const bit<2048> TOP = TOP_32 ++ TOP_32;
const bit<2048> MAGNITUDE = ~TOP;

#define LANE_REGISTER(k) register<bit<2048>>(SLOTS * VERSIONS) word_##k;
#define LANE_REGISTERS EACH_WORD(LANE_REGISTER) bit<2048> held = 0; bit<2048> pick = 0;

#define SUM_WORD(k)                                                                              \
    word_##k.read(held, cell);                                                                   \
    lanes.word_##k = ((lanes.word_##k & MAGNITUDE) + (held & MAGNITUDE)) ^ ((lanes.word_##k ^ held) & TOP); \
    word_##k.write(cell, lanes.word_##k);
#define SUM_LANES EACH_WORD(SUM_WORD)

#define OR_WORD(k)                                                                               \
    word_##k.read(held, cell);                                                                   \
    lanes.word_##k = lanes.word_##k | held;                                                      \
    word_##k.write(cell, lanes.word_##k);
#define OR_LANES EACH_WORD(OR_WORD)

#define MAX_WORD(k)                                                                              \
    word_##k.read(held, cell);                                                                   \
    pick = (lanes.word_##k | TOP) - (held & MAGNITUDE);                                          \
    pick = ((lanes.word_##k & ~held) | (~(lanes.word_##k ^ held) & pick)) & TOP;                 \
    pick = pick | (pick - (pick >> 31));                                                         \
    lanes.word_##k = (lanes.word_##k & pick) | (held & ~pick);                                   \
    word_##k.write(cell, lanes.word_##k);
#define MAX_LANES EACH_WORD(MAX_WORD)

#define START_WORD(k) word_##k.write(cell, lanes.word_##k);
#define START_LANES EACH_WORD(START_WORD)

#define RECALL_WORD(k) word_##k.read(lanes.word_##k, cell);
#define RECALL_LANES EACH_WORD(RECALL_WORD)

#endif
