/* Threads that wait a little for work and then sleep. One number says what is left of the present
 * piece of work: a thread takes a chunk by lowering it, so that one which the system does not run
 * holds up nothing but a chunk that it has taken.
 *
 * On a busy machine even that is too much: the thread comes back after milliseconds, the time of a
 * pass. A call that had to wait for so long takes one thread less for a while, and longer if
 * the same happens when it is taken back. */
#ifdef __linux__
#define _GNU_SOURCE
#include <sched.h>
#endif

#include "parallel.h"

#include "flarechat.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_THREADS = 64,
    SPIN = 100000,      /* nanoseconds of waiting for work before sleeping */
    PATIENCE = 100000,  /* nanoseconds of waiting for others' last chunks, and three chunks' time */
    NAP = 50000,        /* nanoseconds of sleep when patience is over: an idle core may take in the
                         * thread waited for */
    SHORTEST = 10000000, LONGEST = 640000000, /* nanoseconds for which a thread is left out */
    PROBATION = 50000000
};

static struct {
    /* Chunks left in the low half; the number of the piece of work in the high half. */
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) atomic_int done;
    _Alignas(64) atomic_char asleep[MOST_THREADS];
    /* Written while nothing is left, read by threads that have a chunk. */
    fc_work work;
    void *what;
    int32_t chunks;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int32_t started;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static atomic_int wanted = 1, worked = 1;

/* How many of `wanted` take part now, when the next comes back, and how long the last was out. */
static struct {
    atomic_int threads;
    int64_t next, back, out;
} active = {.threads = 1};

static void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* A chunk of the present piece of work, or -1. Once it is taken, what it is of stays. */
static int32_t take(void) {
    uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_acquire);
    while ((uint32_t)ticket)
        if (atomic_compare_exchange_weak_explicit(&pool.ticket, &ticket, ticket - 1,
                                                  memory_order_acq_rel, memory_order_acquire))
            return pool.chunks - (int32_t)(uint32_t)ticket;
    return -1;
}

static int left(void) { return (uint32_t)atomic_load(&pool.ticket) != 0; }

static int called(int32_t number) {
    return left() && number < atomic_load_explicit(&active.threads, memory_order_relaxed);
}

static void wait_for_work(int32_t number) {
    const int64_t end = nanoseconds() + SPIN;
    do {
        for (int i = 0; i < 64; i++) {
            if (called(number))
                return;
            rest();
        }
    } while (nanoseconds() < end);
    pthread_mutex_lock(&pool.mutex);
    atomic_store(&pool.asleep[number], 1);
    while (!called(number))
        pthread_cond_wait(&pool.wake, &pool.mutex);
    atomic_store(&pool.asleep[number], 0);
    pthread_mutex_unlock(&pool.mutex);
}

static void *help(void *number) {
    for (;;) {
        wait_for_work((int32_t)(intptr_t)number);
        for (int32_t chunk; (chunk = take()) >= 0;) {
            pool.work(pool.what, chunk);
            atomic_fetch_add_explicit(&pool.done, 1, memory_order_release);
        }
    }
    return NULL;
}

/* A child has none of its parent's threads. */
static void forget(void) {
    pool.started = 0;
    for (int32_t number = 0; number < MOST_THREADS; number++)
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

static void leave_one_out(int64_t now) {
    active.out = now - active.back < PROBATION ? active.out * 2 : SHORTEST;
    active.out = active.out < SHORTEST ? SHORTEST : active.out > LONGEST ? LONGEST : active.out;
    active.next = now + active.out;
    atomic_store_explicit(&active.threads, active.threads - 1, memory_order_relaxed);
}

static int32_t threads_now(void) {
    const int32_t most = atomic_load_explicit(&wanted, memory_order_relaxed);
    int32_t threads = atomic_load_explicit(&active.threads, memory_order_relaxed);
    if (threads < most) {
        const int64_t now = nanoseconds();
        if (now >= active.next) {
            active.back = now;
            active.next = now + PROBATION;
            threads++;
        }
    }
    threads = threads < most ? threads : most;
    atomic_store_explicit(&active.threads, threads, memory_order_relaxed);
    return threads;
}

/* Until all chunks are done; `began` is when the caller began, `mine` how many it did itself. */
static void wait_for_others(int32_t chunks, int64_t began, int32_t mine) {
    int64_t limit = 0;
    for (int turn = 0; atomic_load_explicit(&pool.done, memory_order_acquire) < chunks; turn++) {
        rest();
        if (turn % 64 != 63)
            continue;
        const int64_t now = nanoseconds();
        if (!limit) {
            limit = now + PATIENCE + 3 * (now - began) / (mine + 1);
        } else if (now > limit) {
            leave_one_out(now);
            const struct timespec nap = {0, NAP};
            while (atomic_load_explicit(&pool.done, memory_order_acquire) < chunks)
                nanosleep(&nap, NULL);
        }
    }
}

static void wake(int32_t threads) {
    int asleep = 0;
    for (int32_t number = 1; number < threads; number++)
        asleep |= atomic_load(&pool.asleep[number]);
    if (!asleep)
        return;
    pthread_mutex_lock(&pool.mutex);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.mutex);
}

static void offer(fc_work work, void *what, int32_t chunks) {
    pool.work = work, pool.what = what, pool.chunks = chunks;
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    const uint64_t number = (atomic_load(&pool.ticket) >> 32) + 1;
    atomic_store(&pool.ticket, number << 32 | (uint32_t)chunks);
}

void fc_parallel(fc_work work, void *what, int32_t chunks) {
    const int32_t threads = chunks < 2 ? 1 : threads_now();
    atomic_store_explicit(&worked, threads, memory_order_relaxed);
    if (threads == 1) {
        for (int32_t chunk = 0; chunk < chunks; chunk++)
            work(what, chunk);
        return;
    }
    start(threads);
    const int64_t began = nanoseconds();
    offer(work, what, chunks);
    wake(threads);
    int32_t mine = 0;
    for (int32_t chunk; (chunk = take()) >= 0; mine++)
        work(what, chunk);
    atomic_fetch_add_explicit(&pool.done, mine, memory_order_relaxed);
    wait_for_others(chunks, began, mine);
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
    const int32_t most = allowed() < MOST_THREADS ? allowed() : MOST_THREADS;
    atomic_store(&wanted, threads < 1 ? 1 : threads > most ? most : threads);
}

int32_t fc_threads(void) { return atomic_load(&worked); }
