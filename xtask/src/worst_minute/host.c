// What a runtime loads to have Coroner, and to crash: built as a program (HOST), as a library that installs when it is loaded into Node
// (INSTALL), as one that crashes then (CRASH), both with native methods for Java, and as a part of a Go program (EMBEDDED).
// `library.h` beside it defines LIBRARY, the path of Coroner's.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

static void *library;

// `first`: the handlers that were there before are asked first about every fault.
static void install(int first) {
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "not loaded: %s\n", dlerror());
        exit(3);
    }
    void *(*new_config)(const char *) = (void *(*)(const char *))dlsym(library, "coroner_config_new");
    int (*set_store)(void *, const char *) = (int (*)(void *, const char *))dlsym(library, "coroner_config_set_store_dir");
    int (*install)(void *) = (int (*)(void *))dlsym(library, "coroner_install");
    void *config = new_config("worst-minute");
    set_store(config, getenv("CORONER_STORE"));
    int (*chain_first)(void *, _Bool) = (int (*)(void *, _Bool))dlsym(library, "coroner_config_set_chain_first");
    if (first) chain_first(config, 1);
    int status = install(config);
    if (status) {
        const char *(*why)(void) = (const char *(*)(void))dlsym(library, "coroner_last_error");
        fprintf(stderr, "not installed: status %d: %s\n", status, why ? why() : "");
        exit(4);
    }
}

__attribute__((noinline)) static void crash(void) {
    volatile int *nowhere = NULL;
    // Or the compiler, which knows that nobody stores there, takes the function for one that is never called.
    __asm__ volatile("" : "+r"(nowhere));
    *nowhere = 1;
}

#if defined(HOST)
int main(int count, char **words) {
    int first = 0;
    for (int n = 1; n < count; n++) first |= !strcmp(words[n], "first");
    install(first);
    for (int n = 1; n < count; n++) {
        if (!strcmp(words[n], "crash")) crash();
        if (!strcmp(words[n], "unload")) {
            dlclose(library);
            raise(SIGTERM);
        }
    }
    return 0;
}
#elif !defined(EMBEDDED)
static void act(void) {
#if defined(CRASH)
    crash();
    (void)install;
#else
    install(0);
    (void)crash;
#endif
}

// Node: what process.dlopen calls.
void *napi_register_module_v1(void *environment, void *exports) {
    (void)environment;
    act();
    return exports;
}

// Java: the native methods of the class Host.
void Java_Host_install(void *environment, void *class) {
    (void)environment, (void)class;
    install(0);
}

void Java_Host_crash(void *environment, void *class) {
    (void)environment, (void)class;
    crash();
}
#endif
