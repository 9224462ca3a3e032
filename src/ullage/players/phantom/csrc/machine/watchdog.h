/* The watchdogs of PyTorch's process groups (watchdog.c). */
#ifndef ULLAGE_WATCHDOG_H
#define ULLAGE_WATCHDOG_H

/* Each of them looks which collectives are done. */
void let_watchdogs_look(void);

#endif
