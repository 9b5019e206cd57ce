/* Changing plans: a tail that is appended, tails that are dropped; see pack.h and PLAN.md. */
#include "pack.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "progress.h"
#include "sheet.h"

int pack_lock(const char *path, struct diag *d) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) return fd;
    if (fd >= 0 && errno == EWOULDBLOCK) diag_error(d, "plan-busy", path, "another jllmc changes this plan");
    else diag_error(d, "plan", path, "cannot change this plan: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

static bool same_inode(const struct stat *a, const struct stat *b) { return a->st_dev == b->st_dev && a->st_ino == b->st_ino; }

bool pack_check(int fd, const struct plan_view *v, const char *path, struct diag *d) {
    struct stat own, seen, named;
    if (!fstat(fd, &own) && !fstat(v->fd, &seen) && !stat(path, &named) && same_inode(&own, &seen) && same_inode(&own, &named)) return true;
    diag_error(d, "plan-replaced", path, "another file has taken this name meanwhile; nothing was written: run it again");
    return false;
}

bool pack_append(int fd, const struct plan_view *v, const struct buffer *tail) {
    struct stat st;
    struct plan_slot slot;
    unsigned other = v->slot == &v->header->slot[0];
    if (fstat(fd, &st)) return false;
    uint64_t at = u64_round_up((uint64_t)st.st_size, PLAN_WEIGHT_ALIGN);
    emit_slot(&slot, v->slot->generation + 1, at, tail);
    /* The slot counts only when all of the tail is on disk. */
    if (!file_put_at(fd, tail->data, tail->bytes, at) || fsync(fd)) {
        int why = errno;
        (void)!ftruncate(fd, st.st_size);      /* what did not fit; if it stays it is in nobody's way */
        errno = why;
        return false;
    }
    return file_put_at(fd, &slot, sizeof slot, offsetof(struct plan_header, slot) + other * sizeof slot) && !fsync(fd);
}

bool pack_revert(int fd, const struct plan_view *v) {
    const struct plan_slot none = {0};
    unsigned other = v->slot == &v->header->slot[0];
    return file_put_at(fd, &none, sizeof none, offsetof(struct plan_header, slot) + other * sizeof none) && !fsync(fd);
}

static bool write_packed(struct output *o, const struct plan_view *v, struct diag *d) {
    enum { PART = 64 << 20 };
    union { struct plan_header h; uint8_t page[PLAN_HEADER_BYTES]; } head = {.page = {0}};
    struct buffer tail = {.data = (uint8_t *)(uintptr_t)v->tail, .bytes = (size_t)v->slot->tail_bytes};
    uint64_t weights = v->header->weights_bytes;
    head.h = *v->header;
    memset(head.h.slot, 0, sizeof head.h.slot);
    emit_slot(&head.h.slot[0], v->slot->generation, PLAN_HEADER_BYTES + weights, &tail);
    for (uint64_t at = 0; at < weights; at += PART) {
        uint64_t bytes = weights - at < PART ? weights - at : PART;
        if (base_interrupted || !output_write(o, v->weights + at, (size_t)bytes, PLAN_HEADER_BYTES + at, d)) return false;
    }
    return output_write(o, tail.data, tail.bytes, PLAN_HEADER_BYTES + weights, d) && output_write(o, head.page, sizeof head.page, 0, d);
}

/* Who may read the plan stays as it is. Only root can keep another's plan theirs: to others it is their own then. */
static bool keep_owner(const struct output *o, int fd, struct diag *d) {
    struct stat st;
    if (!fstat(fd, &st)) {
        (void)!fchown(o->fd, st.st_uid, st.st_gid);
        if (!fchmod(o->fd, st.st_mode & 07777)) return true;
    }
    diag_error(d, "plan", o->path, "cannot give the new file the old one's permissions: %s", strerror(errno));
    return false;
}

static int pack_open_plan(const char *path, int fd, const struct plan_view *v, struct arena *a, struct diag *d) {
    struct output o;
    uint64_t packed = PLAN_HEADER_BYTES + v->header->weights_bytes + v->slot->tail_bytes;
    if (packed == v->map_bytes) {
        if (!progress_quiet) fprintf(stderr, "%s: nothing to drop\n", path);
        return 0;
    }
    bool ok = output_open(&o, path, a, d) && keep_owner(&o, fd, d) && write_packed(&o, v, d) && pack_check(fd, v, path, d) && output_publish(&o, a, d);
    output_abandon(&o);
    if (ok && !progress_quiet) fprintf(stderr, "%s: %.1f MB less\n", path, (double)(v->map_bytes - packed) / 1e6);
    return ok ? 0 : 3;
}

int pack_plan(const char *path, struct arena *a, struct diag *d) {
    struct plan_view v;
    int fd = pack_lock(path, d);
    if (fd < 0) return 3;
    int rc = 1;
    if (sheet_open_plan(&v, path, d)) {
        rc = pack_check(fd, &v, path, d) ? pack_open_plan(path, fd, &v, a, d) : 3;
        plan_close(&v);
    }
    close(fd);
    return rc;
}
