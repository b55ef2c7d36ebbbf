// A garbage collector with a write barrier (Boehm's, incremental): it was there before Coroner,
// repairs faults by thousands, and stops threads by a signal, in whose handler their stacks are
// scanned from where they are. Its functions come from the library by name: Debian's package for
// programs has no headers.
#define LIBRARY_OF_FUNCTIONS
#include "host.c"

typedef struct {
    void *base;
    void *reserved[4];
} stack_base;

static void *(*gc_malloc)(size_t);
static int (*get_stack_base)(stack_base *), (*register_thread)(const stack_base *), (*unregister_thread)(void);

static void *collector_function(const char *name) {
    static void *collector;
    if (!collector) collector = dlopen("libgc.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *found = collector ? dlsym(collector, name) : NULL;
    if (!found) exit(3);
    return found;
}

static void *work(void *main_thread) {
    stack_base base;
    if (!main_thread) get_stack_base(&base), register_thread(&base);
    void **list = NULL;
    for (int n = 0; n < 150000; n++) {
        void **cell = gc_malloc(64);
        cell[0] = n % 1000 ? list : NULL;
        list = cell;
        if (n % 3 == 0 && list[0]) ((void **)list[0])[1] = cell;
    }
    if (!main_thread) unregister_thread();
    return NULL;
}

int main(void) {
    gc_malloc = (void *(*)(size_t))collector_function("GC_malloc");
    get_stack_base = (int (*)(stack_base *))collector_function("GC_get_stack_base");
    register_thread = (int (*)(const stack_base *))collector_function("GC_register_my_thread");
    unregister_thread = (int (*)(void))collector_function("GC_unregister_my_thread");
    ((void (*)(void))collector_function("GC_init"))();
    ((void (*)(void))collector_function("GC_allow_register_threads"))();
    ((void (*)(void))collector_function("GC_enable_incremental"))();
    host_install();
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) pthread_create(&threads[n], NULL, work, NULL);
    work(&threads);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    // No fault of the collector's own ends like this.
    raise(SIGFPE);
    return 0;
}
