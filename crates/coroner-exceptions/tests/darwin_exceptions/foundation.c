// A stand-in for libobjc, Foundation and AppKit: what Coroner asks of them, with the contracts of <objc/runtime.h>, <objc/message.h>
// and <Foundation/NSException.h>, and a program's throws. It shows that Coroner keeps to these contracts, not that Apple's do.

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NOINLINE __attribute__((noinline))

struct class {
    const char *name;
    struct class *superclass;
};

static struct class object_class = {"NSObject", 0}, exception_class = {"NSException", &object_class},
                    application_class = {"NSApplication", &object_class};

// Objects of every kind: texts, arrays, numbers, exceptions.
struct object {
    struct class *isa;
    const char *text;
    uintptr_t number;
    struct object *items[16];
    struct object *name, *reason, *user_info, *addresses;
};

typedef void (*handler)(struct object *);
typedef void (*implementation)(void *, const char *, struct object *);

static handler uncaught;

EXPORT void NSSetUncaughtExceptionHandler(handler new) { uncaught = new; }
EXPORT handler NSGetUncaughtExceptionHandler(void) { return uncaught; }

// Selectors are unique strings.
EXPORT const char *sel_registerName(const char *name)
{
    static const char *known[32];
    for (int index = 0; index < 32; ++index) {
        if (!known[index])
            known[index] = strdup(name);
        if (strcmp(known[index], name) == 0)
            return known[index];
    }
    abort();
}

EXPORT struct class *objc_getClass(const char *name)
{
    struct class *all[] = {&object_class, &exception_class, &application_class};
    for (int index = 0; index < 3; ++index) {
        if (strcmp(all[index]->name, name) == 0)
            return all[index];
    }
    return 0;
}

EXPORT struct class *class_getSuperclass(struct class *class) { return class ? class->superclass : 0; }

static void raise(struct object *exception);
static struct object *new_exception(const char *name);
static int description_throws;

EXPORT uintptr_t objc_msgSend(struct object *self, const char *selector, uintptr_t argument)
{
    if (!self)
        return 0;
    if (strcmp(selector, "name") == 0)
        return (uintptr_t)self->name;
    if (strcmp(selector, "reason") == 0)
        return (uintptr_t)self->reason;
    if (strcmp(selector, "userInfo") == 0)
        return (uintptr_t)self->user_info;
    if (strcmp(selector, "callStackReturnAddresses") == 0)
        return (uintptr_t)self->addresses;
    if (strcmp(selector, "count") == 0 || strcmp(selector, "unsignedIntegerValue") == 0)
        return self->number;
    if (strcmp(selector, "objectAtIndex:") == 0 && argument < self->number)
        return (uintptr_t)self->items[argument];
    if (strcmp(selector, "description") == 0) {
        if (description_throws)
            raise(new_exception("NSSecondException"));
        return (uintptr_t)self;
    }
    if (strcmp(selector, "UTF8String") == 0)
        return (uintptr_t)self->text;
    _exit(90); // unrecognized selector
}

static void reports(void *self, const char *selector, struct object *exception) { (void)self, (void)selector, (void)exception; }
static implementation report_exception = reports;

EXPORT implementation *class_getInstanceMethod(struct class *class, const char *selector)
{
    return class == &application_class && strcmp(selector, "reportException:") == 0 ? &report_exception : 0;
}

EXPORT implementation method_setImplementation(implementation *method, implementation new)
{
    implementation before = *method;
    *method = new;
    return before;
}

static struct object *new_object(const char *text)
{
    struct object *object = calloc(1, sizeof *object);
    object->isa = &object_class;
    object->text = text;
    return object;
}

// As `-[NSException raise]` does: the return addresses of the throw, by frame records.
static NOINLINE struct object *return_addresses(void)
{
    struct object *array = new_object(0);
    uintptr_t *record = __builtin_frame_address(0);
    while (record && array->number < 16) {
        struct object *number = new_object(0);
        number->number = record[1];
        if (!number->number)
            break;
        array->items[array->number++] = number;
        record = (uintptr_t *)record[0];
    }
    return array;
}

static struct object *new_exception(const char *name)
{
    struct object *exception = new_object(0);
    exception->isa = &exception_class;
    exception->name = new_object(name);
    exception->reason = new_object("the order failed");
    exception->user_info = new_object("{ order = 7; }");
    return exception;
}

// The end of the runtime: the handler, then abort.
static NOINLINE void gives_up(struct object *exception)
{
    if (uncaught)
        uncaught(exception);
    abort();
}

// With a C++ runtime `@throw` is a C++ throw of the object, of a type whose virtual table is libobjc's, and where nobody catches
// it the handler that libobjc has set ends the process (objc4, runtime/objc-exception.mm): it tells the handler of uncaught
// exceptions, and goes on in the one that was there before.
EXPORT void *objc_ehtype_vtable[6];
static struct {
    void **vtable;
    const char *name;
    struct class *class;
} exception_type = {objc_ehtype_vtable + 2, "NSException", &exception_class};

static struct {
    void *(*allocate)(size_t);
    void (*throw)(void *, void *, void (*)(void *));
    void (*(*set_terminate)(void (*)(void)))(void);
} cxx;
static void (*cxx_terminate)(void);
static struct object *thrown;

static void objc_terminate(void)
{
    if (thrown && uncaught)
        uncaught(thrown);
    cxx_terminate();
}

EXPORT void with_cxx_runtime(void)
{
    void *runtime = dlopen("/usr/lib/libc++.1.dylib", RTLD_NOW | RTLD_GLOBAL);
    if (!runtime)
        _exit(91);
    *(void **)&cxx.allocate = dlsym(runtime, "__cxa_allocate_exception");
    *(void **)&cxx.throw = dlsym(runtime, "__cxa_throw");
    *(void **)&cxx.set_terminate = dlsym(runtime, "_ZSt13set_terminatePFvvE");
    if (!cxx.allocate || !cxx.throw || !cxx.set_terminate)
        _exit(92);
    cxx_terminate = cxx.set_terminate(objc_terminate);
}

static NOINLINE void raise(struct object *exception)
{
    exception->addresses = return_addresses();
    if (cxx.throw) {
        struct object **object = cxx.allocate(sizeof *object);
        *object = thrown = exception;
        cxx.throw(object, &exception_type, 0);
    }
    gives_up(exception);
}

static NOINLINE int throws_object(int depth)
{
    raise(new_exception("NSGenericException"));
    return depth;
}

static NOINLINE int passes_object(int depth)
{
    volatile int here = depth;
    return throws_object(depth) + here;
}

static void apps_own(struct object *exception)
{
    _exit(exception->name && strcmp(exception->name->text, "NSGenericException") == 0 ? 7 : 8);
}

EXPORT void own_uncaught_handler(void) { NSSetUncaughtExceptionHandler(apps_own); }

static void *on_pthread(void *unused)
{
    volatile int here = 0;
    here = passes_object(here) + here;
    return unused;
}

EXPORT void die_of_object(const char *name, int on_thread)
{
    volatile int here = 0;
    if (on_thread) {
        pthread_t thread;
        pthread_create(&thread, 0, on_pthread, 0);
        pthread_join(thread, 0);
        sleep(60);
    }
    if (strncmp(name, "appkit", 6) == 0) {
        struct object *exception = new_exception("NSGenericException");
        exception->addresses = return_addresses();
        report_exception(0, sel_registerName("reportException:"), exception);
        _exit(5);
    }
    description_throws = strncmp(name, "object-description", 18) == 0;
    here = passes_object(here) + here;
}
