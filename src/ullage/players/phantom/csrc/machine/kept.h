/* What is kept for asynchronous collectives (kept.c). */
#ifndef ULLAGE_KEPT_H
#define ULLAGE_KEPT_H

#include "completion.h"

void keep_for_collective(struct mark collective, const void *p); /* position 0: for none */
void drop_waited(struct mark collective);                       /* the program waits for it */
void drop_seen(struct mark end);                                 /* all of its stream up to there are seen done */
bool is_operand(const void *block, size_t bytes);                /* whether a block is kept for any */

#endif
