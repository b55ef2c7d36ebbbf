/* Calls the setters in C: `program STORE FOLDER ACT`. Without an act, it delivers the reports to
 * FOLDER. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coroner.h"

#define SET(call)                                                                                                    \
    do {                                                                                                             \
        if ((call) != CORONER_STATUS_OK) {                                                                           \
            fprintf(stderr, "%s: %s\n", #call, coroner_last_error());                                                \
            exit(4);                                                                                                 \
        }                                                                                                            \
    } while (0)

static const char *act;

static bool hides_orders(const char *key, const char *text, void *context)
{
    (void)text;
    return strcmp(key, context) == 0;
}

static void leave(int signal)
{
    (void)signal;
    _exit(7);
}

static void *attached(void *nothing)
{
    SET(coroner_attach_current_thread());
    return nothing;
}

static void crash(void)
{
    *(volatile int *)16 = 1;
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    act = arguments[3];
    if (strcmp(act, "ignored") == 0)
        signal(SIGSEGV, leave);
    coroner_config *config = coroner_config_new("com.example.setters");
    SET(coroner_config_set_store_dir(config, arguments[1]));
    SET(coroner_config_set_version(config, "1.0"));
    SET(coroner_config_set_release(config, "setters@1.0-rc"));
    SET(coroner_config_set_environment(config, "beta"));
    SET(coroner_config_set_dist(config, "arm"));
    SET(coroner_config_set_stack_memory_all(config, strcmp(act, "all-stacks") == 0));
    SET(coroner_config_set_report_fork_children(config, strcmp(act, "fork") == 0));
    SET(coroner_config_set_objc_exceptions(config, false));
    SET(coroner_config_set_appkit_exceptions(config, false));
    SET(coroner_config_set_reports_per_hour(config, 1));
    SET(coroner_config_set_scrub_secrets(config, strcmp(act, "open") != 0));
    SET(coroner_config_set_scrub(config, hides_orders, "order"));
    coroner_exit_info info = { .size = sizeof info, .pid = 4194000, .reason = 5, .timestamp_ms = 1700000000000 };
    if (strcmp(act, "info") == 0)
        SET(coroner_config_add_exit_info(config, &info));
    if (strcmp(act, "kept") == 0)
        SET(coroner_config_set_no_sinks(config));
    else
        SET(coroner_config_add_folder_sink(config, arguments[2]));
    SET(coroner_install(config));

    SET(coroner_set_tag("gone", "is not in the report"));
    SET(coroner_set_tag("order", "4711"));
    SET(coroner_set_tag("from", "https://user:word@example.com/"));
    SET(coroner_remove_tag("gone"));
    SET(coroner_remove_tag("never set"));
    SET(coroner_set_user_id("u-1"));
    SET(coroner_set_foreground(true));
    if (strcmp(act, "changed") == 0) {
        SET(coroner_set_release("setters@2.0"));
        SET(coroner_set_environment("production"));
        SET(coroner_set_user_id(NULL));
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, attached, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 5;

    if (strcmp(act, "handled") == 0) {
        for (int time = 0; time < 3; time++)
            coroner_report_exception(CORONER_EXCEPTION_LANGUAGE_CPP, "shop::Closed", "come back");
    } else if (strcmp(act, "ignored") == 0) {
        SET(coroner_ignore_next_signal(SIGSEGV));
        crash();
    } else if (strcmp(act, "fork") == 0 || strcmp(act, "fork-unreported") == 0) {
        pid_t child = fork();
        if (child == 0)
            crash();
        int status;
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
            return 6;
    } else if (*act == '\0' || strcmp(act, "open") == 0 || strcmp(act, "kept") == 0 || strcmp(act, "info") == 0) {
        coroner_flush(20000);
    } else {
        crash();
    }
    return 0;
}
