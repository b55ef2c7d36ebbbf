/* Adds data to its crash report: `program STORE ACT`. Without an act, it delivers the reports and
 * prints how the last run ended. */
#include <assert.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coroner.h"

static char lines[64] = "first line\nlast line\n";

static size_t write_level(void *context, uint8_t *into, size_t room)
{
    const char *text = context;
    size_t length = strlen(text) < room ? strlen(text) : room;
    memcpy(into, text, length);
    return length;
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    const char *act = count > 2 ? arguments[2] : "";
    coroner_config *config = coroner_config_new("com.example.last-words");
    coroner_config_set_store_dir(config, arguments[1]);
    coroner_config_set_keep_output(config, strcmp(act, "says-unkept") != 0);
    if (coroner_install(config) != CORONER_STATUS_OK) {
        fprintf(stderr, "%s\n", coroner_last_error());
        return 4;
    }
    if (*act == '\0') {
        coroner_last_run_info last = { .size = sizeof last };
        coroner_flush(20000);
        if (coroner_last_run(&last) != CORONER_STATUS_OK)
            return 5;
        printf("outcome %d\n", (int)last.outcome);
    } else if (strcmp(act, "memory") == 0) {
        coroner_register_memory("lines.txt", lines, sizeof lines);
        coroner_register_memory("replaced", lines, 5);
        coroner_register_memory("replaced", lines + 6, 4);
        coroner_register_memory("gone", lines, sizeof lines);
        coroner_unregister_memory("gone");
        coroner_set_crash_callback(write_level, "level 3");
        *(volatile int *)16 = 1;
    } else if (strcmp(act, "asserts") == 0) {
        assert(count == 17);
    } else if (strcmp(act, "says") == 0 || strcmp(act, "says-unkept") == 0) {
        /* Like musl's assert. */
        printf("to stdout\n");
        fflush(stdout);
        for (int line = 0; line < 4000; line++)
            fprintf(stderr, "line %d of the log of a program\n", line);
        fprintf(stderr, "Assertion failed: pages > 0 (book.c: print: 12)\n");
        abort();
    } else if (strcmp(act, "said-before") == 0) {
        /* An earlier assertion of a child. */
        fprintf(stderr, "Assertion failed: pages > 0 (book.c: print: 12)\n");
        for (int line = 0; line < 100; line++)
            fprintf(stderr, "line %d of the log of a program\n", line);
        abort();
    } else if (strcmp(act, "vfork") == 0) {
        pid_t child = vfork();
        if (child == 0)
            _exit(3);
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3)
            return 6;
        kill(getpid(), SIGKILL);
    } else if (strcmp(act, "_exit") == 0) {
        _exit(0);
    } else if (strcmp(act, "waits") == 0) {
        printf("installed\n");
        fflush(stdout);
        for (;;)
            pause();
    }
    return 0;
}
