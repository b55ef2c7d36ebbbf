// A tool, a daemon and a pre-forking server in C, as `cargo xtask launches` starts them: `app STORE
// WORD`.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coroner.h"

extern char **environ;

static const char *program, *store;

__attribute__((noinline)) static void crash(void) {
    volatile int *nowhere = NULL;
    // Or the compiler, which knows that nobody stores there, takes the function for one that is
    // never called.
    __asm__ volatile("" : "+r"(nowhere));
    *nowhere = 1;
}

static void demand(int holds, const char *what) {
    if (holds) return;
    perror(what);
    _exit(3);
}

// A child that goes on as a process of its own, or the parent, which gets its id.
static pid_t child(void) {
    pid_t pid = fork();
    demand(pid >= 0, "fork");
    if (pid == 0) demand(coroner_after_fork() == CORONER_STATUS_OK, "after_fork");
    return pid;
}

static int ended(pid_t pid) {
    int status;
    demand(waitpid(pid, &status, 0) == pid, "waitpid");
    return status;
}

static void expect_crash(pid_t pid) {
    int status = ended(pid);
    demand(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "a child that crashes");
}

static void expect_end(pid_t pid) {
    int status = ended(pid);
    demand(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child that ends");
}

static void *fork_in_thread(void *nothing) {
    pid_t pid = child();
    if (pid == 0) crash();
    expect_crash(pid);
    return nothing;
}

// What the workers do that do not crash at once. Each ends well.
static void fork_of_fork(void) {
    pid_t pid = child();
    if (pid == 0) crash();
    expect_crash(pid);
}

static void fork_by_thread(void) {
    pthread_t thread;
    demand(pthread_create(&thread, NULL, fork_in_thread, NULL) == 0, "pthread_create");
    pthread_join(thread, NULL);
}

static void other_programs(void) {
    char *words[] = {"true", NULL};
    pid_t pid;
    demand(posix_spawn(&pid, "/bin/true", NULL, NULL, words, environ) == 0, "posix_spawn");
    expect_end(pid);
    pid = vfork();
    if (pid == 0) {
        execve("/bin/true", words, environ);
        _exit(3);
    }
    expect_end(pid);
}

static void itself_again(void) {
    demand(coroner_mark_clean_exit() == CORONER_STATUS_OK, "mark_clean_exit");
    execl(program, program, store, "end", NULL);
    demand(0, "execl");
}

// A server that starts workers, and starts them again when they crash or are killed: six crashes,
// three kills.
static void serve(void) {
    void (*const work[])(void) = {fork_of_fork, fork_by_thread, other_programs, itself_again};
    for (int round = 0; round < 3; round++) {
        pid_t crashes = child();
        if (crashes == 0) crash();
        // Killed once its run is made: what a kill leaves before that, a launch clears away when it
        // is a minute old.
        int is_made[2];
        char byte = 0;
        demand(pipe(is_made) == 0, "pipe");
        pid_t waits = child();
        if (waits == 0) {
            demand(write(is_made[1], &byte, 1) == 1, "write");
            for (;;) pause();
        }
        close(is_made[1]);
        demand(read(is_made[0], &byte, 1) == 1, "a child that waits");
        close(is_made[0]);
        expect_crash(crashes);
        demand(kill(waits, SIGKILL) == 0, "kill");
        demand(WTERMSIG(ended(waits)) == SIGKILL, "a child that is killed");
    }
    for (unsigned n = 0; n < sizeof work / sizeof *work; n++) {
        pid_t pid = child();
        if (pid == 0) {
            work[n]();
            exit(0);
        }
        expect_end(pid);
    }
    // Children that say nothing of themselves: one crashes, the other's end is none of the
    // server's.
    pid_t silent = fork();
    if (silent == 0) crash();
    expect_crash(silent);
    silent = fork();
    if (silent == 0) exit(0);
    expect_end(silent);
}

// As services become daemons.
static void fork_twice(void) {
    if (fork()) _exit(0);
    setsid();
    if (fork()) _exit(0);
    demand(coroner_after_fork() == CORONER_STATUS_OK, "after_fork");
}

int main(int argc, char **argv) {
    const char *word = argc > 2 ? argv[2] : "end";
    program = argv[0];
    store = argv[1];
    coroner_config *config = coroner_config_new("com.example.app");
    coroner_config_set_store_dir(config, store);
    demand(coroner_install(config) == CORONER_STATUS_OK, coroner_last_error());
    if (!strcmp(word, "end")) return 0;
    if (!strcmp(word, "quick")) quick_exit(0);
    if (!strcmp(word, "marked")) {
        coroner_mark_clean_exit();
        _exit(0);
    }
    if (!strcmp(word, "unmarked")) _exit(0);
    if (!strcmp(word, "crash")) crash();
    if (!strcmp(word, "flush")) return coroner_flush(60000) != CORONER_STATUS_OK;
    if (!strcmp(word, "server")) serve();
    if (!strcmp(word, "daemon")) {
        demand(daemon(1, 1) == 0, "daemon");
        demand(coroner_after_fork() == CORONER_STATUS_OK, "after_fork");
        crash();
    }
    if (!strcmp(word, "daemon-ends")) {
        demand(daemon(1, 1) == 0, "daemon");
        demand(coroner_after_fork() == CORONER_STATUS_OK, "after_fork");
    }
    if (!strcmp(word, "forked-twice")) {
        fork_twice();
        crash();
    }
    return 0;
}
