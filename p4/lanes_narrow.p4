// One 32-bit register array a lane, each touched once a packet in one pass, no multiply, divide or loop: the
// shape that match-action hardware takes (SwitchML, arXiv 1903.06701).
#ifndef LANES_NARROW_P4
#define LANES_NARROW_P4

#define LANE_REGISTER(k) register<bit<32>>(SLOTS * VERSIONS) lane_##k;
#define LANE_REGISTERS EACH_LANE(LANE_REGISTER) bit<32> held = 0;

#define SUM_LANE(k)                                                                              \
    lane_##k.read(held, cell);                                                                   \
    lanes.lane_##k = lanes.lane_##k + held;                                                      \
    lane_##k.write(cell, lanes.lane_##k);
#define SUM_LANES EACH_LANE(SUM_LANE)

#define OR_LANE(k)                                                                               \
    lane_##k.read(held, cell);                                                                   \
    lanes.lane_##k = lanes.lane_##k | held;                                                      \
    lane_##k.write(cell, lanes.lane_##k);
#define OR_LANES EACH_LANE(OR_LANE)

#define MAX_LANE(k)                                                                              \
    lane_##k.read(held, cell);                                                                   \
    lanes.lane_##k = lanes.lane_##k > held ? lanes.lane_##k : held;                              \
    lane_##k.write(cell, lanes.lane_##k);
#define MAX_LANES EACH_LANE(MAX_LANE)

#define START_LANE(k) lane_##k.write(cell, lanes.lane_##k);
#define START_LANES EACH_LANE(START_LANE)

#define RECALL_LANE(k) lane_##k.read(lanes.lane_##k, cell);
#define RECALL_LANES EACH_LANE(RECALL_LANE)

#endif
