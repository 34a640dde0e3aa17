// Repetition, since P4 has no arrays of externs: EACH_WORD(M) and EACH_LANE(M) expand M once for every
// wide word or narrow lane of a packet, with its number in hexadecimal.
#ifndef REPEAT_P4
#define REPEAT_P4

#define TIMES_4(M) M(00) M(01) M(02) M(03)
#define TIMES_16(M, digit)                                                      \
    M(digit##0) M(digit##1) M(digit##2) M(digit##3) M(digit##4) M(digit##5)     \
    M(digit##6) M(digit##7) M(digit##8) M(digit##9) M(digit##a) M(digit##b)     \
    M(digit##c) M(digit##d) M(digit##e) M(digit##f)
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
