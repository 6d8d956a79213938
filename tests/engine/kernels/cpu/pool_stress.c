/* The pool under stress: every chunk of every piece of work once, and what it wrote seen by the
 * caller, for changing sizes and threads, after sleep, and in a child after a fork. Says "ok". */
#define _GNU_SOURCE
#include "flarechat.h"
#include "parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 700 };

typedef struct {
    int counts[MOST];
    int spin;
} record;

static void count(void *what, int32_t chunk) {
    record *of = what;
    for (volatile int i = 0; i < of->spin; i++) {
    }
    of->counts[chunk]++;
}

static void piece(int32_t chunks, int spin) {
    record *of = calloc(1, sizeof *of);
    of->spin = spin;
    fc_parallel(count, of, chunks);
    for (int32_t chunk = 0; chunk < MOST; chunk++)
        if (of->counts[chunk] != (chunk < chunks)) {
            printf("chunk %d of %d ran %d times\n", chunk, chunks, of->counts[chunk]);
            exit(1);
        }
    free(of);
}

static void rounds(int pieces) {
    for (int i = 0; i < pieces; i++) {
        if (i % 97 == 0)
            fc_set_threads(1 + rand() % 8);
        if (i % 211 == 0)
            usleep(300);
        piece(i % 5 ? rand() % 9 : rand() % MOST, i % 3 ? 0 : rand() % 2000);
    }
}

int main(int arguments, char **values) {
    const int pieces = arguments > 1 ? atoi(values[1]) : 2000;
    srand(7);
    rounds(pieces);
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        rounds(pieces / 4);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    rounds(pieces / 4);
    if (status) {
        printf("the child failed: %d\n", status);
        return 1;
    }
    puts("ok");
    return 0;
}
