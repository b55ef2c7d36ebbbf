// A master process with workers. Arguments: the store's folder, what to do, and what that needs.
// Without an action it delivers what is in the store and prints whether the last run crashed.
#define _GNU_SOURCE
#include "coroner.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *how = "";

static int has(const char *word) { return strstr(how, word) != NULL; }

static void must(int result, const char *what) {
    if (result < 0) {
        perror(what);
        _exit(4);
    }
}

static int *volatile nowhere;

__attribute__((noinline)) static void crash(void) { *nowhere = 1; }

// Waits for a child, which must have died of SIGSEGV.
static void wait_for(pid_t child) {
    int status;
    must(waitpid(child, &status, 0), "waitpid");
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) {
        fprintf(stderr, "worker: status %#x\n", status);
        exit(5);
    }
}

// Gives up what a worker needs to create a file in the store.
static void drop_privileges(void) {
    struct rlimit none = {0, 0}, standard = {3, 3};
    if (has("mount")) {
        must(unshare(CLONE_NEWNS), "unshare");
        must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "mount");
        must(mount("none", "/tmp", "tmpfs", 0, NULL), "mount");
    }
    if (has("chroot")) {
        must(chroot("/proc/self"), "chroot");
        must(chdir("/"), "chdir");
    }
    if (has("file size"))
        must(setrlimit(RLIMIT_FSIZE, &none), "setrlimit");
    if (has("descriptors"))
        must(setrlimit(RLIMIT_NOFILE, &standard), "setrlimit");
    if (has("user")) {
        must(setgroups(0, NULL), "setgroups");
        must(setgid(65534), "setgid");
        must(setuid(65534), "setuid");
    }
}

static void work_and_crash(int turn) {
    char go;
    if (turn >= 0 && read(turn, &go, 1) != 0)
        _exit(6);
    drop_privileges();
    crash();
}

static pid_t start_worker(int turn, int turn_end) {
    // What fork does, without its handlers.
    pid_t child = has("clone") ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        if (turn_end >= 0)
            close(turn_end);
        work_and_crash(turn);
    }
    must(child, "fork");
    return child;
}

static void run_workers(int count) {
    pid_t workers[64];
    int turn[2] = {-1, -1};
    if (has("daemon")) {
        pid_t child = fork();
        must(child, "fork");
        if (child > 0)
            exit(0);
        must(setsid(), "setsid");
    }
    if (has("alone")) {
        // In a process that blocks crash signals, Coroner starts no thread.
        sigset_t crashes;
        sigemptyset(&crashes);
        sigaddset(&crashes, SIGSEGV);
        sigprocmask(SIG_BLOCK, &crashes, NULL);
    }
    if (has("clone")) {
        // The first fork reserves reports for later children, of any kind.
        pid_t child = fork();
        must(child, "fork");
        if (child == 0)
            _exit(0);
        must(waitpid(child, NULL, 0), "waitpid");
    }
    if (has("together"))
        must(pipe(turn), "pipe");
    for (int worker = 0; worker < count; worker++) {
        workers[worker] = start_worker(turn[0], turn[1]);
        if (!has("together"))
            wait_for(workers[worker]);
    }
    if (has("together")) {
        close(turn[1]);
        for (int worker = 0; worker < count; worker++)
            wait_for(workers[worker]);
    }
    // The master lives until its input ends.
    char byte;
    printf("died\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
}

int main(int count, char **arguments) {
    const char *action = count > 2 ? arguments[2] : "";
    how = count > 3 ? arguments[3] : "";
    coroner_config *config = coroner_config_new("workers");
    coroner_config_set_store_dir(config, arguments[1]);
    must(coroner_install(config) == CORONER_STATUS_OK ? 0 : -1, coroner_last_error());
    if (!*action) {
        coroner_last_run_info last_run = {.size = sizeof last_run};
        coroner_flush(20000);
        coroner_last_run(&last_run);
        printf("%d\n", last_run.outcome == CORONER_OUTCOME_CRASHED);
    }
    if (strcmp(action, "workers") == 0)
        run_workers(atoi(arguments[4]));
    // A child with the same process ID, if this is the first process of a pid namespace.
    if (strcmp(action, "namespace") == 0) {
        must(unshare(CLONE_NEWPID), "unshare");
        pid_t child = fork();
        if (child == 0) {
            fprintf(stderr, "%d ", getpid());
            crash();
        }
        wait_for(child);
        fprintf(stderr, "%d", getpid());
        if (has("crashes"))
            crash();
    }
    return 0;
}
