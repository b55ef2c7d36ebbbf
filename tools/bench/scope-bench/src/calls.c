/* The C side of `scope-bench`: the same calls as in main.rs, as an app in C makes them. */
#include "coroner.h"

static const char *const KEYS[8] = {"screen", "document", "tool", "layer", "zoom", "theme", "account", "experiment"};
static const char *const VALUES[2] = {"preferences/shortcuts", "canvas/selection/lasso"};

/* Sets a tag `calls` times; answers how many were taken. */
unsigned set_tags(unsigned calls) {
    unsigned taken = 0;
    for (unsigned call = 0; call < calls; call++) {
        taken += coroner_set_tag(KEYS[call % 8], VALUES[call / 8 % 2]) == CORONER_STATUS_OK;
    }
    return taken;
}

/* Leaves a breadcrumb `calls` times; answers how many were taken. */
unsigned add_breadcrumbs(unsigned calls) {
    unsigned taken = 0;
    for (unsigned call = 0; call < calls; call++) {
        taken += coroner_add_breadcrumb("ui.click", "opened the document `drawing-17`", CORONER_LEVEL_INFO) == CORONER_STATUS_OK;
    }
    return taken;
}
