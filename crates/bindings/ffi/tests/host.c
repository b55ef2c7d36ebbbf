// A host with signals, stacks and threads of its own. Arguments: the store's folder, what to do,
// and what that needs. Without an action it delivers what is in the store.
#define _GNU_SOURCE
#include "coroner.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

static char *action, **more;

static int is(const char *name) { return strcmp(action, name) == 0; }

static void install(const char *store) {
    coroner_config *config = coroner_config_new("host");
    coroner_config_set_store_dir(config, store);
    coroner_config_set_reinstall_handlers(config, !strncmp(action, "replaces", strlen("replaces")));
    if (coroner_install(config) != CORONER_STATUS_OK) {
        fprintf(stderr, "install: %s\n", coroner_last_error());
        exit(3);
    }
}

__attribute__((noinline)) static int overflow(int depth) {
    volatile char frame[512];
    frame[0] = (char)depth;
    return depth < 0 ? 0 : overflow(depth + 1) + frame[0];
}

__attribute__((noinline)) static void use_stack(size_t kilobytes) {
    volatile char *bytes = __builtin_alloca(kilobytes << 10);
    for (size_t at = kilobytes << 10; at > 0; at -= 512)
        bytes[at - 1] = 1;
}

// Handlers of the host's own.

static void on_user_signal(int signal) {
    (void)signal;
    use_stack(strtoul(more[0], NULL, 10));
}

static void *raises(void *unused) {
    (void)unused;
    raise(SIGUSR1);
    return NULL;
}

static void dump_and_die(int signal) {
    use_stack(strtoul(more[0], NULL, 10));
    if (write(1, "own dump\n", 9) != 9)
        _exit(4);
    struct sigaction before = {.sa_handler = SIG_DFL};
    sigaction(signal, &before, NULL);
    raise(signal);
}

static void *crashes(void *unused) {
    if (strcmp(more[1], "abort") == 0)
        abort();
    *(volatile int *)unused = 1;
    return NULL;
}

// Threads.

static int on_c11_thread(void *unused) {
    (void)unused;
    return is("c11-overflow") ? overflow(0) : 17;
}

static atomic_int started, chosen = -1;

static void *waits_for_its_turn(void *number) {
    started++;
    while (chosen != (intptr_t)number)
        usleep(1000);
    overflow(0);
    return NULL;
}

// Threads that must not be sent the stop signal.

static atomic_int received;
static atomic_int tid;

static void *waits_for_signals(void *unused) {
    sigset_t all;
    sigfillset(&all);
    tid = gettid();
    while (is("sigwaitinfo")) {
        siginfo_t info;
        if (sigwaitinfo(&all, &info) > 0)
            received++;
    }
    int file = signalfd(-1, &all, 0);
    struct signalfd_siginfo info;
    while (read(file, &info, sizeof info) == sizeof info)
        received++;
    return unused;
}

static void *is_sandboxed(void *unused) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_nanosleep, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    tid = gettid();
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return unused;
    for (;;)
        usleep(1000);
}

static int capture_other(void *(*thread)(void *)) {
    pthread_t id;
    pthread_create(&id, NULL, thread, NULL);
    while (!tid)
        usleep(1000);
    usleep(50000);
    coroner_backtrace backtrace;
    for (int round = 0; round < 3; round++) {
        // A stop might kill a thread with a filter of its own.
        int captured = coroner_backtrace_of_thread(&backtrace, tid, NULL) == CORONER_STATUS_OK;
        if (captured == is("sandboxed-thread")) {
            fprintf(stderr, "%s\n", coroner_last_error());
            return 11;
        }
        if (coroner_report_exception(CORONER_EXCEPTION_LANGUAGE_CPP, "Error", "handled") != CORONER_STATUS_OK)
            return 12;
    }
    usleep(50000);
    return received ? 13 : 0;
}

// Handlers that are installed after Coroner's, by programs that never call it.

static void dies(int number) {
    signal(number, SIG_DFL);
    raise(number);
}

static void replace_handler(void) {
    struct sigaction own = {.sa_handler = dies};
    sigaction(SIGSEGV, &own, NULL);
}

static int is_replaced(void) {
    struct sigaction now;
    sigaction(SIGSEGV, NULL, &now);
    return now.sa_handler == dies;
}

static void *does_nothing(void *unused) { return unused; }

static int wait_for_child(void) {
    int status;
    wait(&status);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? 0 : 16;
}

static int replaces_handler(void) {
    pthread_t thread;
    // A worker, and a daemon that starts its threads later.
    if (is("replaces-worker"))
        replace_handler();
    if (!is("replaces") && !is("replaces-uninstall") && fork())
        return wait_for_child();
    if (is("replaces-daemon")) {
        replace_handler();
        pthread_create(&thread, NULL, does_nothing, NULL);
        pthread_join(thread, NULL);
    }
    if (is("replaces") || is("replaces-uninstall"))
        replace_handler();
    if (is("replaces-worker") && is_replaced())
        return 17;
    for (int tries = 0; is_replaced(); tries++) {
        if (tries == 20000)
            return 17;
        usleep(1000);
    }
    if (!is("replaces-uninstall"))
        crashes(NULL);
    coroner_uninstall();
    // Its thread ends.
    return system("until test $(ls /proc/$PPID/task | wc -l) = 1; do sleep 0.01; done");
}

// Plugins.

static int use_plugins(void) {
    for (char **path = more; *path; path++) {
        void *plugin = dlopen(*path, RTLD_NOW | RTLD_LOCAL);
        if (!plugin) {
            fprintf(stderr, "%s\n", dlerror());
            return 10;
        }
        int (*function)(void) = (int (*)(void))dlsym(plugin, "use_exceptions");
        int result = function();
        if (result)
            return result;
    }
    return 0;
}

int main(int count, char **arguments) {
    action = count > 2 ? arguments[2] : "";
    more = arguments + (count > 3 ? 3 : count);
    pthread_t thread;
    if (is("dumps")) {
        struct sigaction own = {.sa_handler = dump_and_die};
        sigaction(SIGSEGV, &own, NULL);
        sigaction(SIGABRT, &own, NULL);
    }
    if (is("threads-before")) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 64 << 10);
        int threads = atoi(more[0]);
        for (intptr_t number = 0; number < threads; number++)
            pthread_create(&thread, &small, waits_for_its_turn, (void *)number);
        while (started < threads)
            usleep(1000);
    }
    if (*arguments[1])
        install(arguments[1]);
    if (is("dumps")) {
        pthread_create(&thread, NULL, crashes, NULL);
        pthread_join(thread, NULL);
    }
    if (is("onstack")) {
        struct sigaction own = {.sa_handler = on_user_signal, .sa_flags = SA_ONSTACK};
        sigaction(SIGUSR1, &own, NULL);
        raises(NULL);
        pthread_create(&thread, NULL, raises, NULL);
        pthread_join(thread, NULL);
    }
    if (is("c11") || is("c11-overflow")) {
        thrd_t c11;
        int result = 0;
        if (thrd_create(&c11, on_c11_thread, NULL) != thrd_success || thrd_join(c11, &result) != thrd_success)
            return 14;
        return result == 17 ? 0 : 15;
    }
    if (is("threads-before")) {
        chosen = atoi(more[0]) - 1;
        pause();
    }
    if (is("sigwaitinfo") || is("signalfd")) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, NULL);
        return capture_other(waits_for_signals);
    }
    if (is("sandboxed-thread"))
        return capture_other(is_sandboxed);
    if (!strncmp(action, "replaces", strlen("replaces")))
        return replaces_handler();
    if (is("plugins"))
        return use_plugins();
    return 0;
}
