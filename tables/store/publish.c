/* The file calls of one commit as one call: Python's lock is given away once, not at each of fifteen calls. The same for
   the files that a pool makes or opens in advance, many in one call.

   The order is that of tables/store/publish.py, where each step is explained. `make setup` compiles this file if the
   machine has a C compiler; without it the steps run in Python. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Numbers of the steps, as in `Step` of file_system.py; 0 says that all are done. */
enum { DONE, WRITE_FILE, WRITE_LOG, SYNC, LINK, SETTLE };

static int create(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
}

/* Open a dead file that no process has open, as `_opened` of file_pool.py does; delete it otherwise and return -1. */
static int open_dead(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0 && fcntl(fd, F_SETLEASE, F_UNLCK) == 0)
        return fd;
    close(fd);
    unlink(path);
    return -1;
}

/* Open a new file: a dead one under its new name, open already or not, or one that is created. */
static int open_new(const char *path, const char *dead, int fd)
{
    if (fd < 0 && *dead)
        fd = open_dead(dead);
    if (fd >= 0) {
        if (rename(dead, path) == 0)
            return fd;
        close(fd);
        unlink(dead);
    }
    return create(path);
}

static int write_all(int fd, const char *data, size_t size)
{
    size_t at = 0;
    while (at < size) {
        ssize_t count = write(fd, data + at, size - at);
        if (count < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        at += (size_t)count;
    }
    return ftruncate(fd, (off_t)size); /* a dead file may have been longer */
}

static int sync_whole(int fd)
{
    int done;
    do
        done = fsync(fd);
    while (done < 0 && errno == EINTR);
    return done;
}

static int sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int done = sync_whole(fd), error = errno;
    close(fd);
    errno = error;
    return done;
}

/* Close both files after a failed step, and keep its error. */
static int failed(int step, int file, int log, int *error)
{
    *error = errno;
    if (file >= 0)
        close(file);
    if (log >= 0)
        close(log);
    return step;
}

/* Create files; `paths` holds `count` of them, each with a 0 at its end. Return how many were created: all, or those
   before the one that failed, with its `errno` in `error`. Descriptors of the first `kept` are in `opened`. */
int deltamq_create(const char *paths, int count, int kept, int *opened, int *error)
{
    for (int i = 0; i < count; i++, paths += strlen(paths) + 1) {
        int fd = create(paths);
        if (fd < 0) {
            *error = errno;
            return i;
        }
        if (i < kept)
            opened[i] = fd;
        else
            close(fd);
    }
    return count;
}

/* Open dead files: descriptors are in `opened`, -1 for one that is in use and was deleted. */
void deltamq_open_dead(const char *paths, int count, int *opened)
{
    for (int i = 0; i < count; i++, paths += strlen(paths) + 1)
        opened[i] = open_dead(paths);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Return DONE, or the step that failed, with its `errno` in `error`. Both descriptors are closed in any case. */
static int publish(
    const char *file, const char *file_folder, const void *file_data, size_t file_size, const char *file_dead, int file_fd,
    const char *temp, const void *log_data, size_t log_size, const char *log_dead, int log_fd,
    const char *name, const char *head, const char *log_folder, int sync, int *error)
{
    int data = open_new(file, file_dead, file_fd);
    if (data < 0 || write_all(data, file_data, file_size))
        return failed(WRITE_FILE, data, log_fd, error);
    int log = open_new(temp, log_dead, log_fd);
    if (log < 0 || write_all(log, log_data, log_size))
        return failed(WRITE_LOG, data, log, error);
    if (sync) {
        /* Start writing both at once: only a hint, so its outcome does not matter. */
        (void)sync_file_range(data, 0, 0, SYNC_FILE_RANGE_WRITE);
        (void)sync_file_range(log, 0, 0, SYNC_FILE_RANGE_WRITE);
        if (sync_whole(data) || sync_folder(file_folder) || sync_whole(log))
            return failed(SYNC, data, log, error);
    }
    int closed = close(data);
    if (close(log) || closed)
        return failed(SYNC, -1, -1, error);
    if (link(temp, name))
        return failed(LINK, -1, -1, error);
    if (rename(temp, head) || (sync && sync_folder(log_folder)))
        return failed(SETTLE, -1, -1, error);
    return DONE;
}

/* Publish, and tell in `took` how many seconds that took: the caller also waits for Python's lock. */
int deltamq_publish(
    const char *file, const char *file_folder, const void *file_data, size_t file_size, const char *file_dead, int file_fd,
    const char *temp, const void *log_data, size_t log_size, const char *log_dead, int log_fd,
    const char *name, const char *head, const char *log_folder, int sync, int *error, double *took)
{
    double began = now_s();
    int step = publish(file, file_folder, file_data, file_size, file_dead, file_fd, temp, log_data, log_size, log_dead,
                       log_fd, name, head, log_folder, sync, error);
    *took = now_s() - began;
    return step;
}
