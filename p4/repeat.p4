// Repetition, since P4 has no arrays of externs: EACH_WORD(M) and EACH_LANE(M) expand M once for every
// wide word or narrow lane of a packet, with its number in hexadecimal.
#ifndef REPEAT_P4
#define REPEAT_P4

#define TIMES_4(M) M(00) M(01) M(02) M(03)
#define TIMES_16(M, d)                                                          \
    M(d##0) M(d##1) M(d##2) M(d##3) M(d##4) M(d##5) M(d##6) M(d##7)             \
    M(d##8) M(d##9) M(d##a) M(d##b) M(d##c) M(d##d) M(d##e) M(d##f)
#define TIMES_32(M) TIMES_16(M, 0) TIMES_16(M, 1)
#define TIMES_256(M)                                                            \
    TIMES_16(M, 0) TIMES_16(M, 1) TIMES_16(M, 2) TIMES_16(M, 3)                 \
    TIMES_16(M, 4) TIMES_16(M, 5) TIMES_16(M, 6) TIMES_16(M, 7)                 \
    TIMES_16(M, 8) TIMES_16(M, 9) TIMES_16(M, a) TIMES_16(M, b)                 \
    TIMES_16(M, c) TIMES_16(M, d) TIMES_16(M, e) TIMES_16(M, f)

#if defined(LAYOUT_WIDE) && LANES == 256
#define EACH_WORD TIMES_4
#elif defined(LAYOUT_WIDE) && LANES == 2048
#define EACH_WORD TIMES_32
#elif defined(LAYOUT_NARROW) && LANES == 256
#define EACH_LANE TIMES_256
#else
#error "no such build: give -DLAYOUT_WIDE or -DLAYOUT_NARROW, and a -DLANES that repeat.p4 knows"
#endif

#endif
