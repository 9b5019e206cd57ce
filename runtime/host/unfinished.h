/* A file that is being written: nothing of it stays when a signal ends the program before it is whole. */
#ifndef UNFINISHED_H
#define UNFINISHED_H

/* SIGINT, SIGTERM and SIGHUP remove `path` before they end the program. One file at a time; path must live until unfinished_end. */
void unfinished_begin(const char *path);

/* It has been renamed or removed: signals do what they did before. */
void unfinished_end(void);

#endif
