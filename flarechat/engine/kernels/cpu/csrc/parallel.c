/* Threads that wait a little for work and then sleep. Each has a range of chunks that it takes from
 * the front, so that it reads weights on and on, which is faster than going by turns; one that has
 * none left takes from the back of others. One that the system does not run holds up nothing but a
 * chunk that it has taken; see attendance.h for when even that is too much. */
#ifdef __linux__
#define _GNU_SOURCE
#endif

#include "parallel.h"

#include "attendance.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

/* Nanoseconds: of waiting for work before sleeping; of waiting for others' last chunks, besides the
 * time of three chunks; of each sleep thereafter, in which an idle core may take in the thread
 * waited for. */
enum { SPIN = 100000, PATIENCE = 100000, NAP = 50000 };

/* Chunks first ... last-1 of a thread: first in the high half, last in the low half. */
typedef struct {
    _Alignas(64) _Atomic uint64_t chunks;
} range;

static struct {
    range ranges[FC_MOST_THREADS];
    _Alignas(64) _Atomic uint64_t number; /* of the present piece of work */
    _Alignas(64) atomic_int done;
    _Alignas(64) atomic_char asleep[FC_MOST_THREADS];
    /* Written while no chunk is left, read by threads that have a chunk. */
    fc_work work;
    void *what;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int32_t started;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

/* A chunk of a range, from the front or the back, or -1. Once it is taken, what it is of stays. */
static int32_t take(range *from, int front) {
    uint64_t chunks = atomic_load_explicit(&from->chunks, memory_order_acquire);
    for (;;) {
        const uint32_t first = (uint32_t)(chunks >> 32), last = (uint32_t)chunks;
        if (first >= last)
            return -1;
        const uint64_t rest = front ? chunks + (1ULL << 32) : chunks - 1;
        if (atomic_compare_exchange_weak_explicit(&from->chunks, &chunks, rest,
                                                  memory_order_acq_rel, memory_order_acquire))
            return (int32_t)(front ? first : last - 1);
    }
}

/* Take part until no chunk is left; how many were done. */
static int32_t work_on(int32_t number, int32_t threads) {
    int32_t done = 0;
    for (int32_t turn = 0; turn < threads; turn++) {
        range *from = &pool.ranges[(number + turn) % threads];
        for (int32_t chunk; (chunk = take(from, !turn)) >= 0; done++) {
            pool.work(pool.what, chunk);
            if (number)
                atomic_fetch_add_explicit(&pool.done, 1, memory_order_release);
        }
    }
    return done;
}

static int called(int32_t number, uint64_t seen) {
    return fc_is_tried(number) || (atomic_load(&pool.number) != seen && number < fc_present());
}

static void wait_for_work(int32_t number, uint64_t seen) {
    const int64_t end = fc_nanoseconds(CLOCK_MONOTONIC) + SPIN;
    do {
        for (int i = 0; i < 64; i++) {
            if (called(number, seen))
                return;
            fc_rest();
        }
    } while (fc_nanoseconds(CLOCK_MONOTONIC) < end);
    pthread_mutex_lock(&pool.mutex);
    atomic_store(&pool.asleep[number], 1);
    while (!called(number, seen))
        pthread_cond_wait(&pool.wake, &pool.mutex);
    atomic_store(&pool.asleep[number], 0);
    pthread_mutex_unlock(&pool.mutex);
}

static void *help(void *argument) {
    const int32_t number = (int32_t)(intptr_t)argument;
    uint64_t seen = 0;
    for (;;) {
        wait_for_work(number, seen);
        if (fc_is_tried(number)) {
            fc_stand_trial(number);
            continue;
        }
        seen = atomic_load(&pool.number);
        work_on(number, fc_present());
    }
    return NULL;
}

/* A child has none of its parent's threads. */
static void forget(void) {
    pool.started = 0;
    for (int32_t number = 0; number < FC_MOST_THREADS; number++)
        atomic_store(&pool.asleep[number], 0);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.wake, NULL);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget); }

static void start(int32_t threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (pool.started >= threads - 1)
        return;
    pthread_once(&once, watch_forks);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; pool.started < threads - 1; pool.started++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void *)(intptr_t)(pool.started + 1)))
            break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void wake(int32_t first, int32_t last) {
    int asleep = 0;
    for (int32_t number = first; number <= last; number++)
        asleep |= atomic_load(&pool.asleep[number]);
    if (!asleep)
        return;
    pthread_mutex_lock(&pool.mutex);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.mutex);
}

/* Until all chunks are done; `began` is when the caller began, `mine` how many it did itself. */
static void wait_for_others(int32_t chunks, int64_t began, int32_t mine) {
    int64_t limit = 0;
    for (int turn = 0; atomic_load_explicit(&pool.done, memory_order_acquire) < chunks; turn++) {
        fc_rest();
        if (turn % 64 != 63)
            continue;
        const int64_t now = fc_nanoseconds(CLOCK_MONOTONIC);
        if (!limit) {
            limit = now + PATIENCE + 3 * (now - began) / (mine + 1);
        } else if (now > limit) {
            fc_leave_one_out();
            const struct timespec nap = {0, NAP};
            while (atomic_load_explicit(&pool.done, memory_order_acquire) < chunks)
                nanosleep(&nap, NULL);
        }
    }
}

static void offer(fc_work work, void *what, int32_t chunks, int32_t threads) {
    pool.work = work, pool.what = what;
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    for (int32_t number = 0; number < threads; number++) {
        const uint64_t first = (uint64_t)chunks * number / threads;
        const uint64_t last = (uint64_t)chunks * (number + 1) / threads;
        atomic_store_explicit(&pool.ranges[number].chunks, first << 32 | last,
                              memory_order_release);
    }
    atomic_fetch_add(&pool.number, 1);
}

void fc_parallel(fc_work work, void *what, int32_t chunks) {
    int32_t tried = 0;
    const int32_t threads = fc_attend(chunks, &tried);
    if (tried) {
        start(tried + 1);
        wake(tried, tried);
    }
    if (threads == 1) {
        for (int32_t chunk = 0; chunk < chunks; chunk++)
            work(what, chunk);
        return;
    }
    start(threads);
    const int64_t began = fc_nanoseconds(CLOCK_MONOTONIC);
    offer(work, what, chunks, threads);
    wake(1, threads - 1);
    const int32_t mine = work_on(0, threads);
    atomic_fetch_add_explicit(&pool.done, mine, memory_order_relaxed);
    wait_for_others(chunks, began, mine);
}
