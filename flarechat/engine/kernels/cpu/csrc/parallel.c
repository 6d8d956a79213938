/* Threads that wait a little for work and then sleep. One number says what is left of the present
 * piece of work: a thread takes a chunk by lowering it, so that one which the system does not run
 * holds up nothing but a chunk that it has taken. */
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

enum { MOST_THREADS = 64, SPIN_NANOSECONDS = 100000 };

static struct {
    /* Chunks left in the low half; the number of the piece of work in the high half. */
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) atomic_int done;
    _Alignas(64) atomic_int sleeping;
    /* Written while nothing is left, read by threads that have a chunk. */
    fc_work work;
    void *what;
    int32_t chunks;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int32_t started;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static atomic_int wanted = 1, worked = 1;

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

static void wait_for_work(void) {
    const int64_t end = nanoseconds() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < 64; i++) {
            if (left())
                return;
            rest();
        }
    } while (nanoseconds() < end);
    pthread_mutex_lock(&pool.mutex);
    atomic_fetch_add(&pool.sleeping, 1);
    while (!left())
        pthread_cond_wait(&pool.wake, &pool.mutex);
    atomic_fetch_sub(&pool.sleeping, 1);
    pthread_mutex_unlock(&pool.mutex);
}

static void *help(void *unused) {
    (void)unused;
    for (;;) {
        const int32_t chunk = take();
        if (chunk < 0) {
            wait_for_work();
            continue;
        }
        pool.work(pool.what, chunk);
        atomic_fetch_add_explicit(&pool.done, 1, memory_order_release);
    }
    return NULL;
}

static void start(int32_t threads) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; pool.started < threads - 1; pool.started++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, NULL))
            break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fc_parallel(fc_work work, void *what, int32_t chunks) {
    const int32_t threads = atomic_load_explicit(&wanted, memory_order_relaxed);
    atomic_store_explicit(&worked, threads < chunks ? threads : 1, memory_order_relaxed);
    if (threads == 1 || chunks < 2) {
        for (int32_t chunk = 0; chunk < chunks; chunk++)
            work(what, chunk);
        return;
    }
    if (pool.started < threads - 1)
        start(threads);
    pool.work = work, pool.what = what, pool.chunks = chunks;
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    const uint64_t number = (atomic_load(&pool.ticket) >> 32) + 1;
    atomic_store(&pool.ticket, number << 32 | (uint32_t)chunks);
    if (atomic_load(&pool.sleeping)) {
        pthread_mutex_lock(&pool.mutex);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.mutex);
    }
    for (int32_t chunk, mine = 1; mine; mine = chunk >= 0)
        if ((chunk = take()) >= 0) {
            work(what, chunk);
            atomic_fetch_add_explicit(&pool.done, 1, memory_order_relaxed);
        }
    while (atomic_load_explicit(&pool.done, memory_order_acquire) < chunks)
        rest();
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
