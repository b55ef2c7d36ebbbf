// What a runtime loads to have Coroner, and to crash: built as a program (HOST), as a library whose
// functions a runtime calls by their names, which installs when it is loaded into Node (INSTALL),
// as ones that crash (CRASH) or report errors (ERRORS) then, as a library that installs in whatever
// program it is preloaded into (PRELOAD), and as a part of a Go program (EMBEDDED). `library.h`
// beside it defines LIBRARY, the path of Coroner's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "library.h"

static void *library;

static void *function(const char *name) {
    // Whichever copy of this file it was that installed.
    if (!library) library = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "not loaded: %s\n", dlerror());
        exit(3);
    }
    return found;
}

// `first`: the handlers that were there before are asked first about every fault. `back`: signals
// are taken back.
static void install(int first, int back) {
    void *(*new_config)(const char *) = (void *(*)(const char *))function("coroner_config_new");
    int (*set_store)(void *, const char *) = (int (*)(void *, const char *))function("coroner_config_set_store_dir");
    int (*chain_first)(void *, _Bool) = (int (*)(void *, _Bool))function("coroner_config_set_chain_first");
    int (*reinstall)(void *, _Bool) = (int (*)(void *, _Bool))function("coroner_config_set_reinstall_handlers");
    int (*install)(void *) = (int (*)(void *))function("coroner_install");
    void *config = new_config("crash-program");
    set_store(config, getenv("CORONER_STORE"));
    if (first) chain_first(config, 1);
    if (back) reinstall(config, 1);
    int status = install(config);
    if (status) {
        const char *(*why)(void) = (const char *(*)(void))function("coroner_last_error");
        fprintf(stderr, "not installed: status %d: %s\n", status, why());
        exit(4);
    }
}

__attribute__((noinline)) static void crash(void) {
    volatile int *nowhere = NULL;
    // Or the compiler, which knows that nobody stores there, takes the function for one that is
    // never called.
    __asm__ volatile("" : "+r"(nowhere));
    *nowhere = 1;
}

// Threads in calls that a signal ends with EINTR. Those that are interrupted count themselves.
static volatile int is_over, interrupted;
static sem_t semaphore;
static int ends[3];

static void note(int failed, const char *call) {
    if (!failed || errno != EINTR) return;
    __atomic_add_fetch(&interrupted, 1, __ATOMIC_SEQ_CST);
    fprintf(stderr, "%s was interrupted\n", call);
}

static void *in_epoll(void *descriptor) {
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, (int)(long)descriptor, &event);
    note(epoll_wait(epoll, &event, 1, -1) < 0, "epoll_wait");
    return NULL;
}

static void *in_poll(void *descriptor) {
    struct pollfd one = {.fd = (int)(long)descriptor, .events = POLLIN};
    note(poll(&one, 1, -1) < 0, "poll");
    return NULL;
}

static void *in_recv(void *descriptor) {
    struct timeval limit = {.tv_sec = 600};
    char byte;
    setsockopt((int)(long)descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    note(recv((int)(long)descriptor, &byte, 1, 0) < 0, "recv");
    return NULL;
}

static void *in_semaphore(void *nothing) {
    note(sem_wait(&semaphore) < 0, "sem_wait");
    return nothing;
}

static void *in_sleep(void *nothing) {
    struct timespec time = {.tv_nsec = 50000000};
    while (!is_over) note(nanosleep(&time, NULL) < 0, "nanosleep");
    return nothing;
}

// Reports of a process that goes on, beside threads that wait and whatever threads the runtime has.
static void report_errors(void) {
    int (*report)(int, const char *, const char *) =
        (int (*)(int, const char *, const char *))function("coroner_report_exception");
    void *(*const calls[5])(void *) = {in_epoll, in_poll, in_recv, in_semaphore, in_sleep};
    pthread_t threads[5];
    sem_init(&semaphore, 0, 0);
    for (int n = 0; n < 5; n++) {
        int pair[2] = {-1, -1};
        if (n < 3 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(7);
        if (n < 3) ends[n] = pair[1];
        if (pthread_create(&threads[n], NULL, calls[n], (void *)(long)pair[0])) exit(7);
    }
    // They are about to enter their calls: those that have not yet are not disturbed either.
    usleep(50000);
    for (int n = 0; n < 10; n++) {
        if (report(1, "Error", "the fridge is empty")) exit(8);
    }
    is_over = 1;
    sem_post(&semaphore);
    for (int n = 0; n < 3; n++) {
        if (write(ends[n], "x", 1) != 1) exit(7);
    }
    for (int n = 0; n < 5; n++) pthread_join(threads[n], NULL);
    if (interrupted) exit(6);
}

#if defined(HOST)
int main(int count, char **words) {
    int first = 0;
    for (int n = 1; n < count; n++) first |= !strcmp(words[n], "first");
    install(first, 0);
    for (int n = 1; n < count; n++) {
        if (!strcmp(words[n], "errors")) report_errors();
        if (!strcmp(words[n], "crash")) crash();
        if (!strcmp(words[n], "unload")) {
            dlclose(library);
            raise(SIGTERM);
        }
    }
    return 0;
}
#elif defined(PRELOAD)
// Another program has nothing done to it. redis: once its own handler has the signal, a client in
// its own process has it crash.
static void *ask_for_crash(void *handler) {
    int (*breadcrumb)(const char *, const char *, int) =
        (int (*)(const char *, const char *, int))function("coroner_add_breadcrumb");
    struct sigaction now;
    do {
        usleep(1000);
        sigaction(SIGSEGV, NULL, &now);
    } while ((void *)now.sa_sigaction == handler);
    breadcrumb(NULL, "serving", 1);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, getenv("REDIS_SOCKET"), sizeof address.sun_path - 1);
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    while (connect(client, (struct sockaddr *)&address, sizeof address)) usleep(1000);
    static const char command[] = "DEBUG SEGFAULT\r\n";
    if (write(client, command, sizeof command - 1) < 0) exit(7);
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    install(0, getenv("REINSTALL") != NULL);
    (void)crash, (void)report_errors;
    if (!getenv("REDIS_SOCKET")) return;
    struct sigaction ours;
    sigaction(SIGSEGV, NULL, &ours);
    pthread_t thread;
    pthread_create(&thread, NULL, ask_for_crash, (void *)ours.sa_sigaction);
}
#else
// What is called by name: from C#, Java and Python, and from Go, which has them by including this
// file.
void host_install(void) {
    install(0, 0);
}

void host_crash(void) {
    crash();
}

void host_report_errors(void) {
    report_errors();
}

// Go and those who end by exit_group(2) say that it was well.
void host_end(void) {
    int (*mark)(void) = (int (*)(void))function("coroner_mark_clean_exit");
    mark();
}
#endif

#if defined(INSTALL) || defined(CRASH) || defined(ERRORS)
// Node: what process.dlopen calls.
void *napi_register_module_v1(void *environment, void *exports) {
    (void)environment;
#if defined(CRASH)
    crash();
#elif defined(ERRORS)
    report_errors();
#else
    install(0, 0);
#endif
    return exports;
}

// Java: the native methods of the class Host.
void Java_Host_install(void *environment, void *class) {
    (void)environment, (void)class;
    install(0, 0);
}

void Java_Host_crash(void *environment, void *class) {
    (void)environment, (void)class;
    crash();
}

// Native code that comes to the end of a Java thread's stack: it touches the pages that HotSpot
// guards, and goes on.
__attribute__((noinline)) static int descend(const char *end) {
    volatile char room[256];
    room[0] = 1;
    return (const char *)room > end ? descend(end) + room[0] : 0;
}

void Java_Host_touchGuard(void *environment, void *class) {
    (void)environment, (void)class;
    unsigned long here = (unsigned long)&environment, from, to;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= here && here < to) break;
    }
    fclose(maps);
    if (!descend((const char *)from)) exit(8);
}

void Java_Host_reportErrors(void *environment, void *class) {
    (void)environment, (void)class;
    report_errors();
}
#endif
