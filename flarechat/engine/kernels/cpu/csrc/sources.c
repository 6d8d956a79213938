#include "flarechat.h"

/* The build gives the digest of the sources it compiles. */
#ifndef FC_SOURCES
#define FC_SOURCES ""
#endif

const char *fc_sources(void) { return FC_SOURCES; }
