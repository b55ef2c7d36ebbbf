/* Threads that wait for each other in known ways. Usage: `program STORE ACT END`.
 *
 * Once all threads wait in the kernel, END happens: `crash`, a null pointer on the first thread;
 * `abort`, SIGABRT to the first thread while it waits; `hang`, a detected hang; `stay`, the process
 * keeps waiting to be read from outside. The output has a line for each thread: its
 * number and its thread id. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef ALONE
#include "coroner.h"
#endif

#define MANY 4

static pthread_mutex_t first_mutex, second_mutex;
static pthread_rwlock_t first_rwlock, second_rwlock;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static pthread_t threads[MANY];
static volatile pid_t tids[MANY];
/* Number of completed steps; each is taken by one thread. */
static volatile int step;
static pthread_mutex_t *shared_mutex;

static void reach(int number)
{
    __atomic_store_n(&step, number, __ATOMIC_SEQ_CST);
}

static void await(int number)
{
    while (__atomic_load_n(&step, __ATOMIC_SEQ_CST) < number) {
        usleep(1000);
    }
}

static void mutexes(int type, int protocol, int robust)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, type);
    pthread_mutexattr_setprotocol(&attributes, protocol);
    pthread_mutexattr_setrobust(&attributes, robust);
    pthread_mutex_init(&first_mutex, &attributes);
    pthread_mutex_init(&second_mutex, &attributes);
}

static struct timespec in_an_hour(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += 3600;
    return now;
}

/* Each case is a function of the thread's number; `name` is ACT. */
static const char *act;

static int is(const char *name)
{
    return strcmp(act, name) == 0;
}

static void forever(void)
{
    for (;;) {
        pause();
    }
}

static void lock(pthread_mutex_t *mutex)
{
    struct timespec until = in_an_hour();
    if (is("timed")) {
        pthread_mutex_timedlock(mutex, &until);
    } else if (pthread_mutex_lock(mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(mutex);
    }
}

static void two_mutexes(int number)
{
    lock(number == 0 ? &first_mutex : &second_mutex);
    await(number);
    reach(number + 1);
    await(2);
    lock(number == 0 ? &second_mutex : &first_mutex);
}

static void one_mutex(int number)
{
    if (number == 0) {
        lock(&first_mutex);
        reach(1);
        forever();
    }
    await(1);
    lock(&first_mutex);
}

static void same_mutex(int number)
{
    (void)number;
    lock(&first_mutex);
    lock(&first_mutex);
}

/* The first exits without unlocking. */
static void dead_owner(int number)
{
    if (number == 0) {
        lock(&first_mutex);
        reach(1);
        return;
    }
    await(1);
    pthread_join(threads[0], NULL);
    lock(&first_mutex);
}

/* The first exits with a robust mutex, which the second gets.
 * Then the second and the third wait for each other. */
static void robust_owner(int number)
{
    if (number == 0) {
        lock(&first_mutex);
        return;
    }
    if (number == 1) {
        pthread_join(threads[0], NULL);
        lock(&first_mutex);
        reach(1);
        await(2);
        lock(&second_mutex);
        return;
    }
    await(1);
    lock(&second_mutex);
    reach(2);
    lock(&first_mutex);
}

static void rwlocks(int number)
{
    pthread_rwlock_t *own = number == 0 ? &first_rwlock : &second_rwlock;
    pthread_rwlock_t *other = number == 0 ? &second_rwlock : &first_rwlock;
    pthread_rwlock_wrlock(own);
    await(number);
    reach(number + 1);
    await(2);
    if (is("rwlocks-write")) {
        pthread_rwlock_wrlock(other);
    } else {
        pthread_rwlock_rdlock(other);
    }
}

static void rwlock_readers(int number)
{
    if (number == 0) {
        pthread_rwlock_rdlock(&first_rwlock);
        reach(1);
        forever();
    }
    await(1);
    pthread_rwlock_wrlock(&first_rwlock);
}

/* The first holds the mutex and joins the second, which waits for the mutex. */
static void join(int number)
{
    if (number == 0) {
        lock(&first_mutex);
        reach(1);
        while (threads[1] == 0) {
            usleep(1000);
        }
        pthread_join(threads[1], NULL);
    }
    await(1);
    lock(&first_mutex);
}

static void conditions(int number)
{
    struct timespec until = in_an_hour();
    lock(number == 0 ? &first_mutex : &second_mutex);
    if (number == 0) {
        pthread_cond_wait(&condition, &first_mutex);
    } else {
        static pthread_cond_t other = PTHREAD_COND_INITIALIZER;
        pthread_cond_timedwait(&other, &second_mutex, &until);
    }
}

/* The first is woken and relocks its mutex, which the second holds.
 * The second waits for a mutex of the first. */
static void condition_mutex(int number)
{
    if (number == 0) {
        lock(&second_mutex);
        lock(&first_mutex);
        reach(1);
        pthread_cond_wait(&condition, &first_mutex);
        return;
    }
    await(1);
    lock(&first_mutex);
    pthread_cond_signal(&condition);
    lock(&second_mutex);
}

static void semaphores(int number)
{
    (void)number;
    sem_wait(&semaphore);
}

static void in_another_process(int number)
{
    (void)number;
    lock(shared_mutex);
}

static void (*body)(int);

static void *run(void *argument)
{
    int number = (int)(long)argument;
    tids[number] = (pid_t)syscall(SYS_gettid);
    body(number);
    return NULL;
}

static const struct {
    const char *name;
    void (*body)(int);
    int threads;
    /* Threads that exit. */
    int ending;
} acts[] = {
    {"two-mutexes", two_mutexes, 2, 0},       {"recursive", two_mutexes, 2, 0},
    {"errorcheck", two_mutexes, 2, 0},        {"timed", two_mutexes, 2, 0},
    {"contended", one_mutex, 2, 0},           {"self", same_mutex, 1, 0},
    {"pi-contended", one_mutex, 2, 0},        {"dead-owner", dead_owner, 2, 1},
    {"robust-owner", robust_owner, 3, 1},     {"rwlocks-read", rwlocks, 2, 0},
    {"rwlocks-write", rwlocks, 2, 0},         {"rwlock-readers", rwlock_readers, 2, 0},
    {"join", join, 2, 0},                     {"conditions", conditions, 2, 0},
    {"condition-mutex", condition_mutex, 2, 0}, {"semaphore", semaphores, 1, 0},
    {"another-process", in_another_process, 1, 0},
};

/* Whether a thread waits in the kernel, for a lock or (in `pause`) forever. */
static int waits(pid_t tid)
{
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 1;
    }
    char *read = fgets(line, sizeof line, file);
    fclose(file);
    return read != NULL && (atoi(line) == SYS_futex || atoi(line) == SYS_pause) && line[0] != 'r';
}

static void all_wait(int from, int count)
{
    for (int number = from; number < count; number++) {
        for (int times = 0; times < 3;) {
            times = tids[number] != 0 && waits(tids[number]) ? times + 1 : 0;
            usleep(2000);
        }
    }
}

static pid_t first_thread;

/* For those END values that need the first thread to wait: triggers END once all threads wait. */
static void *end_it(void *argument)
{
    int count = (int)(long)argument;
    all_wait(1, count);
    while (!waits(first_thread)) {
        usleep(1000);
    }
    usleep(20000);
    syscall(SYS_tgkill, getpid(), first_thread, SIGABRT);
    return NULL;
}

int main(int count, char **words)
{
    if (count != 4) {
        return 2;
    }
    act = words[2];
    const char *end = words[3];
    int number = 0;
    while (number < (int)(sizeof acts / sizeof *acts) && !is(acts[number].name)) {
        number++;
    }
    if (number == (int)(sizeof acts / sizeof *acts)) {
        return 2;
    }
    int type = is("recursive") ? PTHREAD_MUTEX_RECURSIVE : is("errorcheck") ? PTHREAD_MUTEX_ERRORCHECK : PTHREAD_MUTEX_NORMAL;
    int protocol = is("pi-contended") ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE;
    mutexes(type, protocol, is("robust-owner") ? PTHREAD_MUTEX_ROBUST : PTHREAD_MUTEX_STALLED);
    pthread_rwlock_init(&first_rwlock, NULL);
    pthread_rwlock_init(&second_rwlock, NULL);
    sem_init(&semaphore, 0, 0);
    if (is("another-process")) {
        shared_mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(shared_mutex, &attributes);
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            lock(shared_mutex);
            reach(1);
            *(volatile int *)((char *)shared_mutex + 2048) = 1;
            while (getppid() == parent) {
                usleep(10000);
            }
            _exit(0);
        }
        while (*(volatile int *)((char *)shared_mutex + 2048) == 0) {
            usleep(1000);
        }
        printf("child %d\n", child);
    }
#ifndef ALONE
    coroner_config *config = coroner_config_new("com.example.locks");
    coroner_config_set_store_dir(config, words[1]);
    if (strcmp(end, "hang") == 0) {
        coroner_config_set_hang_threshold(config, 200);
    }
    if (coroner_install(config) != CORONER_STATUS_OK) {
        return 3;
    }
#endif
    body = acts[number].body;
    int is_first = strcmp(end, "abort") == 0 || strcmp(end, "hang") == 0;
    for (int started = is_first; started < acts[number].threads; started++) {
        pthread_create(&threads[started], NULL, run, (void *)(long)started);
    }
    first_thread = (pid_t)syscall(SYS_gettid);
    tids[0] = is_first ? first_thread : tids[0];
    if (is_first) {
        printf("0 %d\n", first_thread);
        for (int other = 1; other < acts[number].threads; other++) {
            while (tids[other] == 0) {
                usleep(1000);
            }
            printf("%d %d\n", other, tids[other]);
        }
        fflush(stdout);
#ifndef ALONE
        if (strcmp(end, "hang") == 0) {
            coroner_hang_beat();
        } else
#endif
        {
            pthread_t ending;
            pthread_create(&ending, NULL, end_it, (void *)(long)acts[number].threads);
        }
        body(0);
        return 4;
    }
    all_wait(0, acts[number].threads);
    for (int other = 0; other < acts[number].threads; other++) {
        printf("%d %d\n", other, tids[other]);
    }
    fflush(stdout);
    if (strcmp(end, "stay") == 0) {
        sleep(60);
        return 0;
    }
    *(volatile int *)0 = 0;
    return 5;
}
