/*
 * An app in C with Coroner.
 *
 *     cargo build -p coroner-ffi --release
 *     cc -g -o notes examples/c/notes.c -Icrates/bindings/ffi/include \
 *         target/release/libcoroner_ffi.a -lpthread -ldl -lm
 *     ./notes crash      # crashes
 *     ./notes            # reports it, and stores the report
 *
 * With the shared library instead: docs/c.md.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coroner.h"

struct note {
    const char *title;
    int length;
};

/* A bug, as one has them: nobody checks that there is a note. */
static int length_of(const struct note *note)
{
    return note->length;
}

static int save(const struct note *note)
{
    coroner_add_breadcrumb("document", "saves", CORONER_LEVEL_INFO);
    return length_of(note) > 0;
}

static void start_coroner(const char *store)
{
    coroner_config *config = coroner_config_new("com.example.notes");
    coroner_config_set_version(config, "1.0.0");
    if (store != NULL)
        coroner_config_set_store_dir(config, store);
    if (coroner_install(config) != CORONER_STATUS_OK)
        fprintf(stderr, "crashes will not be reported: %s\n", coroner_last_error());
}

static void greet(void)
{
    coroner_last_run_info last = { .size = sizeof last };
    if (coroner_last_run(&last) != CORONER_STATUS_OK)
        return;
    if (last.outcome == CORONER_OUTCOME_CRASHED)
        printf("the last run crashed: %s\n", last.event_id);
    else if (last.outcome == CORONER_OUTCOME_CLEAN_EXIT)
        printf("the last run ended well\n");
}

int main(int argc, char **argv)
{
    int crash = argc > 1 && strcmp(argv[1], "crash") == 0;
    struct note *note = crash ? NULL : malloc(sizeof *note);

    start_coroner(getenv("NOTES_STORE"));
    coroner_set_tag("editor", "plain");
    greet();
    if (note != NULL) {
        note->title = "shopping";
        note->length = 8;
    }
    printf("saved: %d\n", save(note));
    free(note);
    /* An app that ends this soon gives the delivery of older reports a moment. */
    coroner_flush(5000);
    return 0;
}
