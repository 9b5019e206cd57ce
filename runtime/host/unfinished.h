/* A file that is being written: nothing of it stays when a signal ends the program before it is whole. */
#ifndef UNFINISHED_H
#define UNFINISHED_H

/* SIGINT, SIGQUIT, SIGTERM and SIGHUP remove `path` before they end the program. One file at a time; path must live until unfinished_end. */
void unfinished_begin(const char *path);

/* Remove it now, for who ends the program by _exit. Safe in a signal handler. */
void unfinished_drop(void);

/* It has been renamed or removed: signals do what they did before. */
void unfinished_end(void);

#endif
