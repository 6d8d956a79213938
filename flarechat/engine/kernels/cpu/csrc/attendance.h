/* Which threads take part in the pool's work.
 *
 * On a busy machine a thread that holds a chunk may come back after milliseconds, the time of a
 * pass. A call that had to wait for so long takes one thread less from then on. After a while that
 * thread tries whether the system runs it, with no chunk in its hands; if not, it stays out for
 * twice as long. */
#ifndef FLARECHAT_ATTENDANCE_H
#define FLARECHAT_ATTENDANCE_H

#include <stdint.h>
#include <time.h>

enum { FC_MOST_THREADS = 64 };

/* How many threads take part in work of so many chunks; `tried` is a thread to be woken, or 0. */
int32_t fc_attend(int32_t chunks, int32_t *tried);

/* Threads 0 ... n-1 take part now. */
int32_t fc_present(void);

/* The last of them has kept the others waiting. */
void fc_leave_one_out(void);

/* Whether a thread is to stand trial, which takes ten milliseconds. */
int fc_is_tried(int32_t number);
void fc_stand_trial(int32_t number);

int64_t fc_nanoseconds(clockid_t clock);

/* A moment's wait. */
static inline void fc_rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
