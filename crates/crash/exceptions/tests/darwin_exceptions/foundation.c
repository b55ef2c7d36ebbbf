// A stand-in for libobjc, Foundation and AppKit: what Coroner asks of them, with the contracts of
// <objc/runtime.h>, <objc/message.h> and <Foundation/NSException.h>, and a program's throws. It
// shows that Coroner keeps to these contracts, not that Apple's do.

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NOINLINE __attribute__((noinline))

// The first words as in objc4's `struct objc_class` (runtime/objc-runtime-new.h): isa, superclass,
// cache.
struct class {
    struct class *isa, *superclass;
    void *cache;
    const char *name;
};

// A class's class is its metaclass, whose class is the root's, whose class is itself.
static struct class object_class;
static struct class root_metaclass = {&root_metaclass, &object_class, &root_metaclass, "NSObject"},
#define METACLASS(name) name##_metaclass = {&root_metaclass, &root_metaclass, &root_metaclass, #name}
#define CLASS(name, is) name##_class = {&name##_metaclass, &object_class, &root_metaclass, is}
                    METACLASS(exception), METACLASS(application), METACLASS(order), METACLASS(basket), METACLASS(proxy),
                    object_class = {&root_metaclass, 0, &root_metaclass, "NSObject"},
                    CLASS(exception, "NSException"), CLASS(application, "NSApplication"), CLASS(order, "ShopOrder"),
                    CLASS(basket, "ShopBasket"), proxy_class = {&proxy_metaclass, 0, &root_metaclass, "NSProxy"},
                    shop_proxy_class = {&proxy_metaclass, &proxy_class, &root_metaclass, "ShopProxy"};

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
    struct class *all[] = {&object_class, &exception_class, &application_class, &proxy_class};
    for (int index = 0; index < 4; ++index) {
        if (strcmp(all[index]->name, name) == 0)
            return all[index];
    }
    return 0;
}

EXPORT struct class *class_getSuperclass(struct class *class) { return class ? class->superclass : 0; }

static void raise(struct object *exception);
static struct object *new_exception(const char *name);
static struct object *new_object(const char *text);
static int description_throws;

// objc_msgSend's beginning as Apple's is (objc4, runtime/Messengers.subproj): nil answers nil, the
// isa is read, and masked, and the class's cache is looked into. The receiver and the selector stay
// in their registers.
#ifdef __x86_64__
__asm__(".globl _objc_msgSend\n.p2align 4\n_objc_msgSend:\n"
        "testq %rdi, %rdi\n"
        "je 1f\n"
        "movabsq $0x00007ffffffffff8, %r10\n"
        "andq (%rdi), %r10\n"
        "movq 16(%r10), %r11\n"
        "movq (%r11), %r11\n"
        "jmp _dispatch\n"
        "1: xorl %eax, %eax\n"
        "ret\n");
#else
__asm__(".globl _objc_msgSend\n.p2align 2\n_objc_msgSend:\n"
        "cbz x0, 1f\n"
        "ldr x14, [x0]\n"
        "and x16, x14, #0x007ffffffffffff8\n"
        "ldr x11, [x16, #16]\n"
        "ldr x11, [x11]\n"
        "b _dispatch\n"
        "1: ret\n");
#endif
uintptr_t objc_msgSend(struct object *self, const char *selector, uintptr_t argument);

static int freed_is_unmapped;
typedef void (*deallocation)(void *, const char *);
static void deallocates(void *self, const char *selector);
static void deallocates_exception(void *self, const char *selector);
static deallocation object_dealloc = deallocates, proxy_dealloc = deallocates, exception_dealloc = deallocates_exception;
static void *says_name(struct object *self, const char *selector);
static void *says_reason(struct object *self, const char *selector);
static void *(*exception_name)(struct object *, const char *) = says_name, *(*exception_reason)(struct object *, const char *) = says_reason;

static deallocation *dealloc_of(struct class *class)
{
    for (; class; class = class->superclass) {
        if (class == &exception_class)
            return &exception_dealloc;
        if (class == &proxy_class)
            return &proxy_dealloc;
        if (class == &object_class)
            return &object_dealloc;
    }
    return 0;
}

__attribute__((used)) uintptr_t dispatch(struct object *self, const char *selector, uintptr_t argument) __asm__("_dispatch");
uintptr_t dispatch(struct object *self, const char *selector, uintptr_t argument)
{
    if (strcmp(selector, "dealloc") == 0)
        return (*dealloc_of(self->isa))(self, selector), 0;
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
    if (strcmp(selector, "dealloc") == 0)
        return (implementation *)dealloc_of(class);
    if (class == &exception_class && strcmp(selector, "name") == 0)
        return (implementation *)&exception_name;
    if (class == &exception_class && strcmp(selector, "reason") == 0)
        return (implementation *)&exception_reason;
    return class == &application_class && strcmp(selector, "reportException:") == 0 ? &report_exception : 0;
}

EXPORT implementation method_getImplementation(implementation *method) { return *method; }

// objc4, runtime/objc-gdb.h and runtime/isa.h; of arm64 the mask of its simulators, since images
// lie where those of a device do not.
#ifdef __x86_64__
EXPORT const uintptr_t objc_debug_isa_class_mask = 0x00007ffffffffff8;
#else
EXPORT const uintptr_t objc_debug_isa_class_mask = 0x007ffffffffffff8;
#endif
EXPORT struct class *object_getClass(struct object *object)
{
    return object ? (struct class *)((uintptr_t)object->isa & objc_debug_isa_class_mask) : 0;
}
EXPORT const char *class_getName(struct class *class) { return class ? class->name : "nil"; }

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

// With a C++ runtime `@throw` is a C++ throw of the object, of a type whose virtual table is
// libobjc's. If it is not caught, libobjc's terminate handler ends the process (objc4,
// runtime/objc-exception.mm): it calls the handler of uncaught exceptions, and then the earlier
// terminate handler.
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

static void *says_name(struct object *self, const char *selector) { return (void)selector, self->name; }
static void *says_reason(struct object *self, const char *selector) { return (void)selector, self->reason; }

// As `-[NSObject dealloc]`, which frees the object's memory (objc4, `_objc_rootDealloc`). What
// free(3) leaves in it: a list of free blocks. Each object has pages of its own, so that nothing
// but what a case does comes into its place.
static uintptr_t free_block[4] = {0, 0, 0x5a5a5a5a5a50, 0};

static void deallocates(void *self, const char *selector)
{
    (void)selector;
    if (freed_is_unmapped) {
        munmap(self, 1 << 16);
        return;
    }
    memset(self, 0x55, sizeof(struct object));
    *(uintptr_t **)self = free_block;
}

static void deallocates_exception(void *self, const char *selector)
{
    struct object *exception = self;
    exception->name = exception->reason = (struct object *)0x5a5a5a5a5a58;
    object_dealloc(self, selector);
}

static struct object *in_pages_of_its_own(struct class *class, void *at)
{
    struct object *object = mmap(at, 1 << 16, PROT_READ | PROT_WRITE, MAP_ANON | MAP_PRIVATE | (at ? MAP_FIXED : 0), -1, 0);
    object->isa = class;
    return object;
}

// The last reference is gone (objc4, `objc_object::rootRelease`).
static void release(struct object *object) { objc_msgSend(object, sel_registerName("dealloc"), 0); }

// A null store while the first argument is in its register.
static NOINLINE void crashes_beside(struct object *object)
{
#ifdef __x86_64__
    __asm__ volatile("movl $1, 8" : : "D"(object) : "memory");
#else
    register struct object *first __asm__("x0") = object;
    __asm__ volatile("mov x9, #8\n\tstr w9, [x9]" : : "r"(first) : "x9", "memory");
#endif
}

static char *zombie_case;

static void *uses_object(void *unused)
{
    struct class *class = strstr(zombie_case, "proxy") ? &shop_proxy_class : &order_class;
    if (strstr(zombie_case, "exception"))
        class = &exception_class;
    struct object *object = in_pages_of_its_own(class, 0);
    // So that the class's name is known.
    release(in_pages_of_its_own(&basket_class, 0));
    if (class == &exception_class) {
        object->name = new_object("NSRangeException");
        object->reason = new_object("index 7 beyond bounds");
    }
    freed_is_unmapped = strstr(zombie_case, "unmapped") != 0;
    if (strstr(zombie_case, "never")) {
        *(uintptr_t **)object = free_block;
    } else {
        release(object);
    }
    if (strstr(zombie_case, "reused"))
        in_pages_of_its_own(strstr(zombie_case, "same") ? &order_class : &basket_class, object);
    if (strstr(zombie_case, "beside")) {
        crashes_beside(object);
    }
    objc_msgSend(object, sel_registerName("total"), 0);
    return unused;
}

EXPORT void use_deallocated(const char *name, int on_thread)
{
    zombie_case = strdup(name);
    if (!on_thread)
        uses_object(0);
    pthread_t thread;
    pthread_create(&thread, 0, uses_object, 0);
    pthread_join(thread, 0);
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
