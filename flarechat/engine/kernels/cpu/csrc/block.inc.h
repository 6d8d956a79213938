/* All parts of a table of block_sets.h; see vector.inc.h and attention.inc.h for what is defined
 * before. */
#include "exponential.inc.h"

#include "activation.inc.h"
#include "attention.inc.h"
#include "rotary.inc.h"

#define BLOCK_SET {attend, fold, rotate, to_half, activate}
