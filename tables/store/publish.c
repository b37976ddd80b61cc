/* The file calls of one commit as one call: Python's lock is given away once, not at each of fifteen calls, or not at all,
   if a thread without Python makes them. The same for the files that a pool makes or opens in advance, many in one call.

   The order is that of tables/store/publish.py, where each step is explained. `make setup` compiles this file if the
   machine has a C compiler; without it the steps run in Python. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
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

/* A data file and its commit, as `Publication` of file_system.py, each with a dead file to write to, open or not. */
struct publication {
    const char *file, *file_folder;
    const void *file_data;
    size_t file_size;
    const char *file_dead;
    int file_fd;
    const char *temp;
    const void *log_data;
    size_t log_size;
    const char *log_dead;
    int log_fd;
    const char *name, *head, *log_folder;
    int sync;
};

/* Return DONE, or the step that failed, with its `errno` in `error`. Both descriptors are closed in any case. */
static int publish(const struct publication *p, int *error)
{
    int data = open_new(p->file, p->file_dead, p->file_fd);
    if (data < 0 || write_all(data, p->file_data, p->file_size)) {
        int step = failed(WRITE_FILE, data, p->log_fd, error);
        if (*p->log_dead)
            unlink(p->log_dead); /* the pool does not know it any more */
        return step;
    }
    int log = open_new(p->temp, p->log_dead, p->log_fd);
    if (log < 0 || write_all(log, p->log_data, p->log_size))
        return failed(WRITE_LOG, data, log, error);
    if (p->sync) {
        /* Start writing both at once: only a hint, so its outcome does not matter. */
        (void)sync_file_range(data, 0, 0, SYNC_FILE_RANGE_WRITE);
        (void)sync_file_range(log, 0, 0, SYNC_FILE_RANGE_WRITE);
        if (sync_whole(data) || sync_folder(p->file_folder) || sync_whole(log))
            return failed(SYNC, data, log, error);
    }
    int closed = close(data);
    if (close(log) || closed)
        return failed(SYNC, -1, -1, error);
    if (link(p->temp, p->name))
        return failed(LINK, -1, -1, error);
    if (rename(p->temp, p->head) || (p->sync && sync_folder(p->log_folder)))
        return failed(SETTLE, -1, -1, error);
    return DONE;
}

#define PUBLICATION                                                                                                    \
    const char *file, const char *file_folder, const void *file_data, size_t file_size, const char *file_dead,         \
        int file_fd, const char *temp, const void *log_data, size_t log_size, const char *log_dead, int log_fd,        \
        const char *name, const char *head, const char *log_folder, int sync
#define AS_ASKED                                                                                                       \
    {file, file_folder, file_data, file_size, file_dead, file_fd, temp,      log_data,                                 \
     log_size, log_dead, log_fd,  name,      head,      log_folder, sync}

int deltamq_publish(PUBLICATION, int *error)
{
    struct publication asked = AS_ASKED;
    return publish(&asked, error);
}

/* Threads that publish while the thread that asks for it goes on. */

struct job {
    struct job *next;
    struct publication asked;
    int64_t number;
    int step, error;
};

struct queue {
    struct job *first, *last;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct queue waiting, done;
    int event, is_stopping, count;
    pthread_t threads[];
};

static void put(struct queue *queue, struct job *job)
{
    job->next = NULL;
    if (queue->first)
        queue->last->next = job;
    else
        queue->first = job;
    queue->last = job;
}

static struct job *take(struct queue *queue)
{
    struct job *job = queue->first;
    if (job)
        queue->first = job->next;
    return job;
}

static void *work(void *argument)
{
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct job *job = take(&pool->waiting);
        if (!job) {
            if (pool->is_stopping)
                break;
            pthread_cond_wait(&pool->more, &pool->lock);
            continue;
        }
        pthread_mutex_unlock(&pool->lock);
        job->step = publish(&job->asked, &job->error);
        pthread_mutex_lock(&pool->lock);
        int is_first = !pool->done.first;
        put(&pool->done, job);
        uint64_t one = 1;
        if (is_first && write(pool->event, &one, sizeof one) < 0)
            continue; /* the counter is full: it is readable already */
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Return a pool of up to `threads` threads, and in `event` a descriptor that is readable when jobs are done; NULL if not
   even one could be started. */
struct pool *deltamq_pool_start(int threads, int *event)
{
    struct pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof pool->threads[0]);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->more, NULL);
    pool->event = *event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of Python */
    while (pool->event >= 0 && pool->count < threads &&
           !pthread_create(&pool->threads[pool->count], NULL, work, pool))
        pool->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pool->count)
        return pool;
    if (pool->event >= 0)
        close(pool->event);
    free(pool);
    return NULL;
}

/* Have a publication made; what it points to stays until job `number` is done. Return -1 if there is no memory. */
int deltamq_pool_begin(struct pool *pool, int64_t number, PUBLICATION)
{
    struct job *job = malloc(sizeof *job);
    if (!job)
        return -1;
    *job = (struct job){.asked = AS_ASKED, .number = number};
    pthread_mutex_lock(&pool->lock);
    put(&pool->waiting, job);
    pthread_cond_signal(&pool->more);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

/* Take up to `most` jobs that are done: their numbers, the steps that failed, and their errors. The descriptor stays
   readable if there are more. */
int deltamq_pool_done(struct pool *pool, int64_t *numbers, int *steps, int *errors, int most)
{
    uint64_t counted, one = 1;
    int count = 0;
    pthread_mutex_lock(&pool->lock);
    (void)!read(pool->event, &counted, sizeof counted);
    struct job *job;
    while (count < most && (job = take(&pool->done))) {
        numbers[count] = job->number;
        steps[count] = job->step;
        errors[count++] = job->error;
        free(job);
    }
    if (pool->done.first)
        (void)!write(pool->event, &one, sizeof one);
    pthread_mutex_unlock(&pool->lock);
    return count;
}

/* Make what is waiting, and end the threads. Outcomes that nobody took are lost. */
void deltamq_pool_stop(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->is_stopping = 1;
    pthread_cond_broadcast(&pool->more);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->count; i++)
        pthread_join(pool->threads[i], NULL);
    for (struct job *job; (job = take(&pool->done));)
        free(job);
    close(pool->event);
    pthread_cond_destroy(&pool->more);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
