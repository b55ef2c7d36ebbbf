/* Crashes with known causes. Usage: `program STORE ACT`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "coroner.h"

struct node {
    char name[16];
    int number;
    struct node *next;
};

/* Hidden from the compiler. */
static volatile uintptr_t hidden;

static void *pointer(uintptr_t value)
{
    hidden = value;
    return (void *)hidden;
}

static int read_field(const struct node *node)
{
    return node->number;
}

static void write_field(struct node *node)
{
    node->number = 7;
}

static long add(long *sum)
{
    *sum += 3;
    return *sum;
}

static char element(const char *text, long at)
{
    return text[at];
}

static const char constant[64] = "may not be written";

static int divide(int a, int b)
{
    return a / b;
}

/* Overwrites its own return address, and returns. */
__attribute__((noinline)) static void smashed(void *address)
{
    ((void *volatile *)__builtin_frame_address(0))[1] = address;
}

__attribute__((noinline)) static long recurse(volatile long *depth)
{
    volatile long local[16];
    local[0] = *depth + 1;
    return recurse(&local[0]) + local[0];
}

static long call(void *function)
{
    return ((long (*)(int))function)(1) + 1;
}

static char page_without_file(void)
{
    char path[] = "/tmp/coroner-explain-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    if (file < 0 || ftruncate(file, 8192) != 0)
        return 0;
    const char *bytes = mmap(NULL, 8192, PROT_READ, MAP_SHARED, file, 0);
    if (ftruncate(file, 0) != 0)
        return 0;
    return ((const volatile char *)bytes)[4096];
}

/* A small stack between guard regions of 64 KiB. */
static char *fiber_stack(size_t size)
{
    const size_t guard = 1 << 16;
    char *memory = mmap(NULL, size + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory + guard, size, PROT_READ | PROT_WRITE);
    /* Above the upper guard region is another stack. */
    mmap(memory + size + 2 * guard, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return memory + guard;
}

static void on_fiber(void (*function)(void), size_t size)
{
    static ucontext_t fiber, back;
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = fiber_stack(size);
    fiber.uc_stack.ss_size = size;
    fiber.uc_link = &back;
    makecontext(&fiber, function, 0);
    swapcontext(&back, &fiber);
}

static void writes_up(void)
{
    volatile char local[64];
    /* Not on the stack, which is overwritten. */
    static volatile char *volatile at;
    at = pointer((uintptr_t)local);
    for (;;)
        *at++ = 1;
}

static void writes_far_below(void)
{
    volatile char local[64];
    *(volatile char *)pointer((uintptr_t)local - (40 << 10)) = 1;
}

static void deeper(void)
{
    volatile char local[256];
    local[0] = 1;
    deeper();
    local[1] = 1;
}

static long act_of(const char *act)
{
    if (strcmp(act, "fiber-up") == 0)
        on_fiber(writes_up, 32 << 10);
    if (strcmp(act, "fiber-far-below") == 0)
        on_fiber(writes_far_below, 32 << 10);
    if (strcmp(act, "fiber-overflow") == 0)
        on_fiber(deeper, 32 << 10);
    if (strcmp(act, "waits") == 0) { /* waits for a signal */
        write(1, "installed\n", 10);
        return pause();
    }
    if (strcmp(act, "null-field") == 0)
        return read_field(pointer(0));
    if (strcmp(act, "null-write") == 0)
        write_field(pointer(0));
    if (strcmp(act, "null-add") == 0)
        return add(pointer(0));
    if (strcmp(act, "near-null") == 0)
        return read_field(pointer(0x30));
    if (strcmp(act, "minus-one") == 0)
        return read_field(pointer(UINTPTR_MAX));
    if (strcmp(act, "non-canonical") == 0)
        return read_field(pointer(0x00dead00beef0000));
    if (strcmp(act, "jemalloc") == 0)
        return read_field(pointer(0x5a5a5a5a5a5a5a5a));
    if (strcmp(act, "mimalloc") == 0)
        write_field(pointer(0xdfdfdfdfdfdfdfdf));
    if (strcmp(act, "unmapped") == 0)
        return read_field(pointer(0x123400000000));
    if (strcmp(act, "element") == 0)
        return element(pointer(0), 5);
    if (strcmp(act, "read-only") == 0)
        write_field(pointer((uintptr_t)constant));
    if (strcmp(act, "code") == 0)
        write_field(pointer((uintptr_t)&act_of));
    if (strcmp(act, "call-null") == 0)
        return call(pointer(0));
    if (strcmp(act, "call-nowhere") == 0)
        return call(pointer(0x123400000000));
    if (strcmp(act, "call-data") == 0)
        return call(pointer((uintptr_t)&hidden));
    if (strcmp(act, "call-non-canonical") == 0)
        return call(pointer(0x00dead00beef0000));
    if (strcmp(act, "return-nowhere") == 0)
        smashed(pointer(0x123400000000));
    if (strcmp(act, "return-null") == 0)
        smashed(pointer(0));
    if (strcmp(act, "return-data") == 0)
        smashed(pointer((uintptr_t)&hidden));
    if (strcmp(act, "return-text") == 0)
        smashed(pointer(0x4141414141414141));
    if (strcmp(act, "divide") == 0)
        return divide((int)(uintptr_t)pointer(9), (int)(uintptr_t)pointer(0));
    if (strcmp(act, "divide-overflow") == 0)
        return divide(INT32_MIN + (int)(uintptr_t)pointer(0), (int)(uintptr_t)pointer(UINTPTR_MAX));
    if (strcmp(act, "trap") == 0)
        __builtin_trap();
#if defined(__x86_64__)
    if (strcmp(act, "ubsan") == 0)
        __asm__ volatile(".byte 0x67, 0x0f, 0xb9, 0x40, 0x12"); /* ud1 eax, [eax+18]: an index out of bounds */
    if (strcmp(act, "breakpoint") == 0)
        __asm__ volatile("int3");
    if (strcmp(act, "step") == 0) /* the trap flag: any next instruction traps */
        __asm__ volatile("pushfq; orl $0x100, (%%rsp); popfq; nop; nop" ::: "memory", "cc");
    if (strcmp(act, "privileged") == 0)
        __asm__ volatile("hlt");
    if (strcmp(act, "unaligned") == 0)
        __asm__ volatile("movaps %%xmm0, (%0)" : : "r"((uintptr_t)pointer(((uintptr_t)&hidden & ~15ul) + 8)) : "memory");
    if (strcmp(act, "bad-opcode") == 0)
        __asm__ volatile(".byte 0x06");
#endif
    if (strcmp(act, "abort") == 0)
        abort();
    if (strcmp(act, "overflow") == 0) {
        volatile long depth = 0;
        return recurse(&depth);
    }
    if (strcmp(act, "truncated") == 0)
        return page_without_file();
    return 0;
}

int main(int argc, char **argv)
{
    coroner_config *config = coroner_config_new("com.example.crashes");
    coroner_config_set_store_dir(config, argv[1]);
    if (coroner_install(config) != CORONER_STATUS_OK) {
        fprintf(stderr, "not installed: %s\n", coroner_last_error());
        return 1;
    }
    return argc > 2 ? (int)act_of(argv[2]) : 0;
}
