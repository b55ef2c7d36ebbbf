// C++ exceptions in a library that a program loads. Built by `cargo xtask darwin` as a Mach-O
// library of a name of its own, against the C++ runtime that is built from LLVM's sources: this
// image's calls of __cxa_throw go through its own symbol pointers.

#include <dlfcn.h>
#include <fcntl.h>
#include <mach-o/loader.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "shop.h"

// What libobjc's `@throw` gives the C++ runtime (objc4, runtime/objc-exception.mm): a type whose
// virtual table is its own.
extern "C" {
__attribute__((visibility("default"))) void *objc_ehtype_vtable[6];
void *__cxa_allocate_exception(unsigned long) noexcept;
[[noreturn]] void __cxa_throw(void *, void *, void (*)(void *));
}
static struct {
    void **vtable;
    const char *name;
    void *class_;
} order_type = {objc_ehtype_vtable + 2, "ShopOrder", nullptr};

// Not in a namespace and not mangled: found by name in the report.
extern "C" {

static const char *kind;

static bool is(const char *name)
{
    return std::strncmp(kind, name, std::strlen(name)) == 0;
}

NOINLINE int throws_here(int depth)
{
    if (is("int"))
        throw -42;
    if (is("literal"))
        throw "a literal";
    if (is("what-faults"))
        throw shop::BadWhat(shop::BadWhat::faults);
    if (is("what-hangs"))
        throw shop::BadWhat(shop::BadWhat::hangs);
    if (is("what-throws"))
        throw shop::BadWhat(shop::BadWhat::throws);
    if (is("thrown-object"))
        __cxa_throw(__cxa_allocate_exception(8), &order_type, nullptr);
    if (is("pointer"))
        throw new shop::OrderError;
    throw shop::DoorError();
    return depth;
}

NOINLINE int passes(int depth)
{
    volatile int here = depth;
    return throws_here(depth) + here;
}

SHOP_CATCHES_AND_THROWS(passes)

NOINLINE int catches_many(int depth)
{
    int caught = 0;
    for (int round = 0; round < 1000; ++round) {
        try {
            passes(depth);
        } catch (const std::exception &) {
            ++caught;
        }
    }
    return caught;
}

NOINLINE int throws_anyhow(int depth)
{
    if (is("rethrown"))
        return rethrows(depth) + 1;
    if (is("nested"))
        return nests(depth) + 1;
    if (is("none"))
        std::terminate();
    if (is("after-many") && catches_many(depth) != 1000)
        _exit(9);
    volatile int here = depth;
    return passes(depth) + here;
}

void *on_pthread(void *)
{
    shop::gathers();
    throws_anyhow(1);
    return nullptr;
}

__attribute__((visibility("default"))) int catches_a_thousand(void)
{
    kind = "door";
    return catches_many(0);
}

// A section of this image, by its load commands.
static const section_64 *section_of(const mach_header_64 *header, const char *segment, const char *name)
{
    auto command = reinterpret_cast<const load_command *>(header + 1);
    for (uint32_t left = header->ncmds; left > 0; --left) {
        auto candidate = reinterpret_cast<const segment_command_64 *>(command);
        if (command->cmd == LC_SEGMENT_64 && std::strncmp(candidate->segname, segment, 16) == 0) {
            auto sections = reinterpret_cast<const section_64 *>(candidate + 1);
            for (uint32_t index = 0; index < candidate->nsects; ++index) {
                if (std::strncmp(sections[index].sectname, name, 16) == 0)
                    return sections + index;
            }
        }
        command = reinterpret_cast<const load_command *>(reinterpret_cast<const char *>(command) + command->cmdsize);
    }
    return nullptr;
}

// Makes the lazy pointers to __cxa_throw and __cxa_rethrow what they are before their first use:
// the address of their stub helper, as the file has it. (darwin-host binds all lazy pointers at
// load, dyld only those that are called.) Answers how many.
__attribute__((visibility("default"))) int unbinds_throws(void)
{
    Dl_info here;
    if (!dladdr(reinterpret_cast<const void *>(&unbinds_throws), &here))
        return -1;
    auto header = static_cast<const mach_header_64 *>(here.dli_fbase);
    auto section = section_of(header, "__DATA", "__la_symbol_ptr");
    void *runtime = dlopen("/usr/lib/libc++.1.dylib", RTLD_LAZY);
    int file = open(here.dli_fname, O_RDONLY);
    if (!section || !runtime || file < 0)
        return -2;
    // The image begins at 0 in its file.
    const uintptr_t slide = reinterpret_cast<uintptr_t>(header);
    auto pointers = reinterpret_cast<uintptr_t *>(slide + section->addr);
    int count = 0;
    for (uint64_t index = 0; index < section->size / 8; ++index) {
        uintptr_t unbound = 0;
        bool is_throw = pointers[index] == reinterpret_cast<uintptr_t>(dlsym(runtime, "__cxa_throw"))
            || pointers[index] == reinterpret_cast<uintptr_t>(dlsym(runtime, "__cxa_rethrow"));
        if (is_throw && pread(file, &unbound, sizeof unbound, static_cast<off_t>(section->offset + 8 * index)) == 8) {
            pointers[index] = unbound + slide;
            ++count;
        }
    }
    close(file);
    return count;
}

static void apps_own()
{
    _exit(7);
}

__attribute__((visibility("default"))) void own_terminate_handler(void)
{
    std::set_terminate(apps_own);
}

// Dies of an exception; `on_thread` on another one. A name may end in anything: what is thrown is
// what it begins with.
__attribute__((visibility("default"))) void die_of(const char *name, int on_thread) noexcept
{
    kind = name;
    if (on_thread == 2) {
        // Two at once.
        shop::together = 2;
        pthread_t other;
        pthread_create(&other, nullptr, on_pthread, nullptr);
    }
    if (on_thread) {
        pthread_t thread;
        pthread_create(&thread, nullptr, on_pthread, nullptr);
        pthread_join(thread, nullptr);
        sleep(60);
    } else {
        throws_anyhow(0);
    }
}
}
