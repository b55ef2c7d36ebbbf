// A master process with workers. Arguments: the store's folder, what to do, and what that needs.
// Without an action it delivers what is in the store and prints how the last run ended.
#define _GNU_SOURCE
#include "coroner.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(4);
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

int main(int count, char **arguments) {
    const char *action = count > 2 ? arguments[2] : "", *how = count > 3 ? arguments[3] : "";
    coroner_config *config = coroner_config_new("workers");
    coroner_config_set_store_dir(config, arguments[1]);
    must(coroner_install(config) == CORONER_STATUS_OK ? 0 : -1, coroner_last_error());
    if (!*action) {
        coroner_last_run_info last_run = {.size = sizeof last_run};
        coroner_flush(20000);
        coroner_last_run(&last_run);
        printf("%d\n", last_run.outcome == CORONER_OUTCOME_CRASHED);
    }
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
        if (strcmp(how, "crashes") == 0)
            crash();
    }
    return 0;
}
