#ifdef __linux__
#define _GNU_SOURCE
#include <sched.h>
#endif

#include "attendance.h"

#include "flarechat.h"

#include <stdatomic.h>
#include <unistd.h>

/* Nanoseconds: of a trial; for which a thread is left out; in which one that came back is on
 * probation. */
enum { TRIAL = 10000000, SHORTEST = 40000000, LONGEST = 1280000000, PROBATION = 50000000 };

enum { NOBODY = 0, FAILED = -1, PASSED = -2 };

static atomic_int wanted = 1, worked = 1;

/* How many of `wanted` take part now; which of the others is tried, or how its trial ended; when the
 * next trial is, when a thread last came back, and for how long it had been out. */
static struct {
    atomic_int threads, trial;
    int64_t next, back, out;
} active = {.threads = 1};

int64_t fc_nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int32_t fc_present(void) { return atomic_load_explicit(&active.threads, memory_order_relaxed); }

int fc_is_tried(int32_t number) { return atomic_load(&active.trial) == number; }

/* It passes if the system runs this thread nine tenths of the time. */
void fc_stand_trial(int32_t number) {
    const int64_t began = fc_nanoseconds(CLOCK_MONOTONIC);
    const int64_t used = fc_nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    int64_t passed = 0;
    for (; passed < TRIAL; passed = fc_nanoseconds(CLOCK_MONOTONIC) - began)
        for (int i = 0; i < 64; i++)
            fc_rest();
    const int64_t run = fc_nanoseconds(CLOCK_THREAD_CPUTIME_ID) - used;
    int tried = number;
    atomic_compare_exchange_strong(&active.trial, &tried, run > passed * 9 / 10 ? PASSED : FAILED);
}

static void stay_out(int64_t out) {
    active.out = out < SHORTEST ? SHORTEST : out > LONGEST ? LONGEST : out;
    active.next = fc_nanoseconds(CLOCK_MONOTONIC) + active.out;
    atomic_store(&active.trial, NOBODY);
}

void fc_leave_one_out(void) {
    const int64_t present = fc_nanoseconds(CLOCK_MONOTONIC) - active.back;
    stay_out(present < PROBATION ? active.out * 2 : SHORTEST);
    atomic_store_explicit(&active.threads, fc_present() - 1, memory_order_relaxed);
}

/* Begin a trial if it is time, or heed how the last one ended. */
static void judge(int32_t *tried) {
    const int64_t now = fc_nanoseconds(CLOCK_MONOTONIC);
    const int trial = atomic_load(&active.trial);
    if (trial == FAILED) {
        stay_out(active.out * 2);
    } else if (trial == PASSED) {
        active.back = active.next = now;
        atomic_store(&active.trial, NOBODY);
        atomic_store_explicit(&active.threads, fc_present() + 1, memory_order_relaxed);
    } else if (trial == NOBODY && now >= active.next) {
        *tried = fc_present();
        atomic_store(&active.trial, *tried);
    }
}

int32_t fc_attend(int32_t chunks, int32_t *tried) {
    if (chunks > 1 && fc_present() < atomic_load_explicit(&wanted, memory_order_relaxed))
        judge(tried);
    const int32_t threads = chunks > 1 ? fc_present() : 1;
    atomic_store_explicit(&worked, threads, memory_order_relaxed);
    return threads;
}

static int32_t allowed(void) {
#ifdef __linux__
    cpu_set_t cores;
    if (!sched_getaffinity(0, sizeof cores, &cores))
        return CPU_COUNT(&cores);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}

void fc_set_threads(int32_t threads) {
    const int32_t cores = allowed(), most = cores < FC_MOST_THREADS ? cores : FC_MOST_THREADS;
    atomic_store(&wanted, threads < 1 ? 1 : threads > most ? most : threads);
    atomic_store(&active.threads, atomic_load(&wanted));
    atomic_store(&active.trial, NOBODY);
}

int32_t fc_threads(void) { return atomic_load(&worked); }
