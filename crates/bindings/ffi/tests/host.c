// A host that loads plugins. Arguments: the store's folder, what to do,
// and what that needs. Without an action it delivers what is in the store.
#define _GNU_SOURCE
#include "coroner.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *action, **more;

static int is(const char *name) { return strcmp(action, name) == 0; }

static void install(const char *store) {
    coroner_config *config = coroner_config_new("host");
    coroner_config_set_store_dir(config, store);
    if (coroner_install(config) != CORONER_STATUS_OK) {
        fprintf(stderr, "install: %s\n", coroner_last_error());
        exit(3);
    }
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
    if (*arguments[1])
        install(arguments[1]);
    if (is("plugins"))
        return use_plugins();
    return 0;
}
