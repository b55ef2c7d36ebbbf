/* Programs with one known fault each: compiled with -DFAULT=name as C or C++, run as
 * `program STORE`. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "coroner.h"

#define NOINLINE __attribute__((noinline))

#if defined(__GNUC__) && !defined(__clang__)
#define AS_WRITTEN __attribute__((noipa)) /* with the parameters that it has */
#else
#define AS_WRITTEN NOINLINE
#endif

struct row {
    char name[16];
    int number;           /* 16 */
    unsigned char flag;   /* 20 */
    short count;          /* 22 */
    long long total;      /* 24 */
    double share;         /* 32 */
    char space[0x3000];
    int last;             /* 0x3028 */
};

/* Not known to the compiler. */
static volatile uintptr_t hidden;

static void *pointer(uintptr_t value)
{
    hidden = value;
    return (void *)hidden;
}

static struct row a_row;
static const char constant[64] = "may not be written";

#define READS(name, value, field) \
    NOINLINE static long name(void) { return (long)((volatile struct row *)pointer(value))->field; }
#define WRITES(name, value, field) \
    NOINLINE static long name(void) { ((volatile struct row *)pointer(value))->field = 7; return 0; }

READS(null_int, 0, number)
WRITES(null_int_write, 0, number)
READS(null_char, 0, name[0])
WRITES(null_char_write, 0, name[0])
READS(null_flag, 0, flag)
READS(null_short, 0, count)
WRITES(null_short_write, 0, count)
READS(null_long, 0, total)
WRITES(null_long_write, 0, total)
READS(null_double, 0, share)
WRITES(null_double_write, 0, share)
READS(null_far, 0, last)
READS(near_null, 0x30, number)
WRITES(near_null_write, 0x48, total)
READS(map_failed, UINTPTR_MAX, number)
READS(error_pointer, (uintptr_t)-12, total)
READS(non_canonical, 0x00dead00beef0000, number)
WRITES(non_canonical_write, 0x00dead00beef0000, total)
READS(jemalloc_freed, 0x5a5a5a5a5a5a5a5a, number)
WRITES(jemalloc_new, 0xa5a5a5a5a5a5a5a5, number)
READS(mimalloc_freed, 0xdfdfdfdfdfdfdfdf, total)
READS(crt_freed, 0xdddddddddddddddd, number)
READS(crt_new, 0xcdcdcdcdcdcdcdcd, number)
READS(asan_new, 0xbebebebebebebebe, total)
READS(scribbled, 0x5555555555555555, number)
READS(pattern_init, 0xfefefefefefefefe, number)
READS(go_freed, 0xdeadbeefdeadbeef, number)
READS(unmapped, 0x123400000000, number)
WRITES(unmapped_write, 0x123400000000, total)
WRITES(constant_write, (uintptr_t)constant, number)

NOINLINE static long code_write(void)
{
    ((volatile struct row *)pointer((uintptr_t)&a_row.number - 16 + (uintptr_t)&code_write - (uintptr_t)&a_row))->number = 7;
    return 0;
}

static char *pages(int rights)
{
    char *at = (char *)mmap(NULL, 3 << 14, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == (char *)MAP_FAILED || mprotect(at + (1 << 14), 1 << 14, rights) != 0)
        _exit(3);
    return (char *)pointer((uintptr_t)at + (1 << 14));
}

NOINLINE static long protected_write(void)
{
    ((volatile struct row *)pages(PROT_READ))->number = 7;
    return 0;
}

NOINLINE static long guard_read(void)
{
    return ((volatile struct row *)pages(PROT_NONE))->number;
}

NOINLINE static long guard_write(void)
{
    ((volatile struct row *)pages(PROT_NONE))->total = 7;
    return 0;
}

NOINLINE static long truncated(void)
{
    char path[] = "/tmp/coroner-explain-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    if (file < 0 || ftruncate(file, 1 << 17) != 0)
        return 0;
    const char *bytes = (const char *)mmap(NULL, 1 << 17, PROT_READ, MAP_SHARED, file, 0);
    if (ftruncate(file, 0) != 0)
        return 0;
    return ((const volatile char *)bytes)[1 << 16];
}

static long call(void *function)
{
    return ((long (*)(int))function)(1) + 1;
}

NOINLINE static long call_null(void) { return call(pointer(0)); }
NOINLINE static long call_nowhere(void) { return call(pointer(0x123400000000)); }
NOINLINE static long call_static(void) { return call(pointer((uintptr_t)&a_row)); }
NOINLINE static long call_heap(void) { return call(pointer((uintptr_t)malloc(64))); }
NOINLINE static long call_stack(void)
{
    volatile char local[64];
    local[0] = 1;
    return call(pointer((uintptr_t)local)) + local[0];
}
NOINLINE static long call_non_canonical(void) { return call(pointer(0x00dead00beef0000)); }
NOINLINE static long call_freed(void) { return call(pointer(0x5a5a5a5a5a5a5a5a)); }

#define HIDDEN(type, value) ((type)(uintptr_t)pointer((uintptr_t)(value)))

NOINLINE static long divide(void)
{
    int a = HIDDEN(int, 9), b = HIDDEN(int, 0);
    return a / b;
}
NOINLINE static long divide_unsigned(void)
{
    unsigned long long a = HIDDEN(unsigned long long, 9), b = HIDDEN(unsigned long long, 0);
    return (long)(a / b);
}
NOINLINE static long divide_remainder(void)
{
    int a = HIDDEN(int, 9), b = HIDDEN(int, 0);
    return a % b;
}
NOINLINE static long divide_overflow(void)
{
    int a = HIDDEN(int, (unsigned)INT32_MIN), b = HIDDEN(int, UINTPTR_MAX);
    return a / b;
}

/* What GCC knows to be null it reads by no register, before a trap. */
NOINLINE static long of_zero(void) { return *(volatile int *)0; }
NOINLINE static long trap(void) { if (pointer(1)) __builtin_trap(); return 0; }
#if defined(__x86_64__)
NOINLINE static long ubsan(void) { __asm__ volatile(".byte 0x67, 0x0f, 0xb9, 0x40, 0x12"); return 0; }
NOINLINE static long breakpoint(void) { __asm__ volatile("int3"); return 0; }
NOINLINE static long privileged(void) { __asm__ volatile("hlt"); return 0; }
NOINLINE static long bad_opcode(void) { __asm__ volatile(".byte 0x06"); return 0; }
NOINLINE static long unaligned(void)
{
    __asm__ volatile("movaps %%xmm0, (%0)" : : "r"((uintptr_t)pointer(((uintptr_t)&a_row & ~15ul) + 8)) : "memory");
    return 0;
}
/* A thread that has alignment checked: the kernel says no address of it. */
NOINLINE static long alignment_checked(void)
{
    int found;
    __asm__ volatile("pushf; orl $0x40000, (%%rsp); popf; movl (%1), %0" : "=r"(found) : "r"((uintptr_t)pointer((uintptr_t)&a_row + 1)) : "cc");
    return found;
}
/* A base address that is in none of the report's registers. Nothing is mapped 32 GiB below the
 * thread's own memory. */
NOINLINE static long by_fs(void)
{
    long found;
    __asm__ volatile("movq %%fs:(%1), %0" : "=r"(found) : "r"(pointer((uintptr_t)-0x800000000)));
    return found;
}
/* Code that the program makes as it runs, in no image: zeros (`add %al, (%rax)`), a trap. */
static void *made(const char *code, size_t length)
{
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(memory, code, length);
    return memory;
}
NOINLINE static long zeros_run(void) { __asm__ volatile("xorl %%eax, %%eax; jmp *%0" : : "r"(made("", 0)) : "rax"); return 0; }
NOINLINE static long trap_made(void) { return ((long (*)(void))made("\x0f\x0b", 2))(); }
#else
NOINLINE static long ubsan(void) { __asm__ volatile("brk #0x5512"); return 0; }
NOINLINE static long breakpoint(void) { __asm__ volatile("brk #0xf000"); return 0; }
NOINLINE static long undefined(void) { __asm__ volatile("udf #0"); return 0; }
NOINLINE static long rust_abort(void) { __asm__ volatile("brk #1"); return 0; }
NOINLINE static long authentication_trap(void) { __asm__ volatile("brk #0xc471"); return 0; }
NOINLINE static long cfi_trap(void) { __asm__ volatile("brk #0x5502"); return 0; }
NOINLINE static long fail_fast(void) { __asm__ volatile("brk #0xf003"); return 0; }
NOINLINE static long tagged_null(void) { return ((volatile struct row *)pointer(0x0b00000000000000))->number; }
NOINLINE static long unaligned_exclusive(void)
{
    long found;
    __asm__ volatile("ldaxr %0, [%1]" : "=r"(found) : "r"((uintptr_t)pointer((uintptr_t)&a_row + 1)));
    return found;
}
/* A pointer is signed by one key and authenticated with another modifier. */
NOINLINE static long bad_authentication(void)
{
    uintptr_t function = (uintptr_t)pointer((uintptr_t)&a_row);
    __asm__ volatile(".arch armv8.3-a\n pacia %0, %1\n autia %0, sp\n" : "+r"(function) : "r"(7l));
    return ((volatile struct row *)function)->number;
}
/* A page of code whose functions have to begin with a landing pad. */
NOINLINE static long no_landing_pad(void)
{
    uint32_t *code = (uint32_t *)mmap(NULL, 1 << 14, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    code[0] = 0xd503201f; /* nop */
    code[1] = 0xd65f03c0; /* ret */
    if (mprotect(code, 1 << 14, PROT_READ | PROT_EXEC | 0x10 /* PROT_BTI */) != 0)
        _exit(3);
    __builtin___clear_cache((char *)code, (char *)(code + 2));
    return ((long (*)(void))pointer((uintptr_t)code))() + 1;
}
#endif

NOINLINE static long aborts(void) { abort(); return 0; }
NOINLINE static long asserts(void) { assert(!pointer(1) && "the row has a name"); return 0; }
NOINLINE static long raises(void) { raise(SIGSEGV); return 0; }
NOINLINE static long frees_twice(void)
{
    void *first = malloc(0x2000), *second = malloc(0x2000);
    free(pointer((uintptr_t)first));
    free(pointer((uintptr_t)first));
    return second != NULL;
}
NOINLINE static long smashes(void)
{
    char local[16];
    memset(pointer((uintptr_t)local), 7, HIDDEN(size_t, 64));
    return local[3];
}

NOINLINE static long deeper(volatile long *depth)
{
    volatile long local[16];
    local[0] = *depth + 1;
    return deeper(&local[0]) + local[0];
}
NOINLINE static long overflow(void) { volatile long depth = 0; return deeper(&depth); }
NOINLINE static long odd(volatile long *depth);
NOINLINE static long even(volatile long *depth)
{
    volatile long local[16];
    local[0] = *depth + 1;
    return odd(&local[0]) + local[0];
}
NOINLINE static long odd(volatile long *depth)
{
    volatile long local[8];
    local[0] = *depth + 1;
    return even(&local[0]) + local[0];
}
NOINLINE static long overflow_of_two(void) { volatile long depth = 0; return even(&depth); }

/* A guard inside a mapping, as glibc creates it for thread stacks since 2.42 (Linux 6.13); before
 * that, a separate mapping. */
static char *with_guard(size_t size)
{
    const int guard_install = 102; /* MADV_GUARD_INSTALL of asm-generic/mman-common.h */
    char *memory = (char *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#if defined(__aarch64__)
    const int is_made = 0; /* qemu-user takes the advice, and does nothing. */
#else
    const int is_made = madvise(memory, 0x4000, guard_install) == 0;
#endif
    if (!is_made) mprotect(memory, 0x4000, PROT_NONE);
    return memory;
}
NOINLINE static long guard_within(void) { return ((volatile struct row *)pointer((uintptr_t)with_guard(0x10000)))->number; }
static void *overflows(void *nothing) { return overflow() != 0 ? nothing : NULL; }
NOINLINE static long overflow_into_guard(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, with_guard(0x40000), 0x40000);
    pthread_create(&thread, &attributes, overflows, NULL);
    return pthread_join(thread, NULL);
}

NOINLINE static long large_frame(void)
{
    volatile char local[64 << 20];
    local[0] = (char)(uintptr_t)pointer(1);
    return local[0] + local[sizeof local - 1];
}

#if defined(__x86_64__)
/* What a function returns to is written over, as a buffer on the stack does it. */
#define SMASHES(name, value) \
    NOINLINE static long name(void) { __asm__ volatile("movq %0, (%%rsp); ret" : : "r"(value)); return 0; }
SMASHES(smashed_return, 0x4141414141414141)
SMASHES(smashed_return_to_nowhere, 0x123400000000)
/* Either register may be the pointer. */
#define TWO_ADDED(name, first) \
    NOINLINE static long name(void) \
    { \
        long found; \
        __asm__ volatile("movsbq (%1,%2), %0" : "=r"(found) : "r"(pointer(first)), "r"(pointer(0))); \
        return found; \
    }
TWO_ADDED(two_added, 0x123400000000)
TWO_ADDED(two_added_near_null, 0x30)
#endif

/* Variables and fields that hold what is bad. */
struct picture {
    int width, height;
    char *pixels;           /* 8 */
    struct row *row;        /* 16 */
    struct picture *next;   /* 24 */
    struct row *rows[4];    /* 32 */
    long (*handler)(int);   /* 64 */
};

AS_WRITTEN static struct picture *a_picture(void)
{
    struct picture *found = (struct picture *)pointer((uintptr_t)calloc(1, sizeof *found));
    found->next = (struct picture *)pointer((uintptr_t)calloc(1, sizeof *found));
    return found;
}

AS_WRITTEN static long number_of(struct row *row) { return row->number + 1; }
NOINLINE static long of_parameter(void) { return number_of((struct row *)pointer(0)) + 1; }
NOINLINE static long of_local(void)
{
    struct row *local = (struct row *)pointer(0);
    local->total = 7;
    return local->total + 1;
}
AS_WRITTEN static long row_of(struct picture *picture) { return picture->row->number + 1; }
NOINLINE static long of_field(void) { return row_of(a_picture()) + 1; }
AS_WRITTEN static long fill(struct picture *picture) { picture->pixels[0] = 7; return picture->width; }
NOINLINE static long of_pixels(void) { return fill(a_picture()) + 1; }
AS_WRITTEN static long width_of(struct picture *picture) { return picture->next->next->width + 1; }
NOINLINE static long of_next(void) { return width_of(a_picture()) + 1; }
AS_WRITTEN static long third_of(struct picture *picture) { return picture->rows[2]->number + 1; }
NOINLINE static long of_element(void) { return third_of(a_picture()) + 1; }
static struct picture *current, *nobody;
AS_WRITTEN static long of_current(int more) { return current->row->number + more; }
NOINLINE static long of_global(void) { current = a_picture(); return of_current((int)current->width) + 1; }
AS_WRITTEN static long of_nobody(int more) { return nobody->height + more; }
NOINLINE static long of_static(void) { nobody = (struct picture *)pointer(0); return of_nobody(1) + 1; }
NOINLINE static void prepare(struct picture *picture) { memset(pointer((uintptr_t)picture), 0, sizeof *picture); }
NOINLINE static long of_structure(void)
{
    struct picture local;
    prepare(&local);
    return local.row->number + local.width;
}
NOINLINE static long of_freed(void)
{
    struct picture *picture = a_picture();
    memset(pointer((uintptr_t)picture), 0x5a, sizeof *picture);
    return row_of(picture) + 1;
}
NOINLINE static long used_when_freed(void)
{
    struct picture *picture = a_picture();
    void *others[7];
    for (int i = 0; i < 7; i++)
        others[i] = malloc(sizeof *picture);
    picture->row = &a_row;
    /* What each thread keeps of a size comes first, which glibc does not fill. */
    for (int i = 0; i < 7; i++)
        free(pointer((uintptr_t)others[i]));
    free(pointer((uintptr_t)picture));
    return row_of(picture) + 1;
}
NOINLINE static long never_written(void)
{
    /* Take previously freed blocks first: glibc does not fill those in the thread's cache. */
    void *picture = NULL;
    for (int i = 0; i < 256; i++)
        picture = malloc(sizeof(struct picture));
    return row_of((struct picture *)pointer((uintptr_t)picture)) + 1;
}
struct list {
    struct list *next;
    int number;
};
AS_WRITTEN static long second_of(struct list *list) { return list->next->number + 1; }
/* Free memory begins with the next of its size: there is none. */
NOINLINE static long first_when_freed(void)
{
    /* Of a size that nobody has freed before: the allocator's list of free blocks ends with it. */
    struct list *list = (struct list *)pointer((uintptr_t)malloc(7000));
    list->next = list;
    free(pointer((uintptr_t)list));
    return second_of(list) + 1;
}
NOINLINE static long corrupts_top(void)
{
    char *last = (char *)malloc(0x8008);
    memset(pointer((uintptr_t)last + 0x8008), 0xff, 8);
    return pointer((uintptr_t)malloc(0x9000)) != NULL;
}
NOINLINE static long frees_the_middle(void)
{
    char *bytes = (char *)malloc(0x4000);
    free(pointer((uintptr_t)bytes + 24));
    return bytes[1];
}
NOINLINE static long frees_what_is_not(void) { free(pointer(0x123400001230)); return 0; }
NOINLINE static long frees_cached_twice(void)
{
    void *bytes = malloc(40);
    free(pointer((uintptr_t)bytes));
    free(pointer((uintptr_t)bytes));
    return bytes != NULL;
}
NOINLINE static long corrupts_a_size(void)
{
    char *first = (char *)malloc(0x5008), *second = (char *)malloc(0x5008);
    memset(pointer((uintptr_t)first + 0x5008), 0x41, 8);
    free(pointer((uintptr_t)second));
    return first[0];
}
NOINLINE static long corrupts_a_list(void)
{
    char *first = (char *)malloc(0x5000), *second = (char *)malloc(0x5000);
    free(pointer((uintptr_t)first));
    memset(pointer((uintptr_t)first), 0x41, 16);
    return pointer((uintptr_t)malloc(0x2000)) != second;
}
AS_WRITTEN static long handled(struct picture *picture, int number) { return picture->handler(number) + picture->width; }
NOINLINE static long of_handler(void) { return handled(a_picture(), 3) + 1; }
/* Arrays: of two dimensions; a variable that lies behind one. */
static struct row *volatile grid[3][4];
NOINLINE static long of_dimensions(void) { return grid[2][1]->number; }
static struct row *volatile lone;
static struct row *volatile pair[2];
static struct row *volatile other;
NOINLINE static long behind_array(void) { return lone->number + (other == pair[1]); }

/* What is called jumps on, as its last act, by the register by which it was called. */
struct listener { long (*call)(struct listener *); };
AS_WRITTEN static long hears(struct listener *of) { return of->call(of); }
static long (*volatile heard[2])(struct listener *) = { hears, hears };
AS_WRITTEN static long tells(struct listener *of, int number) { return heard[number](of) + 1; }
NOINLINE static long jumped_on(void)
{
    static struct listener of;
    of.call = (long (*)(struct listener *))pointer(0x123400000000);
    return tells(&of, HIDDEN(int, 1));
}
/* A jump, by a variable of a function that calls nothing. */
NOINLINE static long goes_by(void *to)
{
    void *target = to;
    if ((uintptr_t)to == 1) target = &&first;
    if ((uintptr_t)to == 2) target = &&second;
    goto *target;
first: return 1;
second: return 2;
}
NOINLINE static long goes_to(void) { return goes_by(pointer(0x123400000000)) + 1; }

/* A stack that is unmapped while code runs on it, below other memory; an array that is written
 * downwards from a stack's last bytes. */
static char *contexts_stack;
static void unmaps(void) { munmap(contexts_stack, 0x20000); }
NOINLINE static long stack_unmapped(void)
{
    static ucontext_t context, back;
    contexts_stack = (char *)mmap(NULL, 0x40000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&context);
    context.uc_stack.ss_sp = contexts_stack;
    context.uc_stack.ss_size = 0x20000;
    context.uc_link = &back;
    makecontext(&context, unmaps, 0);
    return swapcontext(&back, &context);
}
NOINLINE static void *near_the_end(void *stack)
{
    volatile char *at = (volatile char *)__builtin_frame_address(0);
    size_t left = (size_t)(at - (volatile char *)stack - 0x1000) - 900;
    volatile char *room = (volatile char *)__builtin_alloca(left);
    for (size_t i = 1; i < 0x1000; i++) room[0 - i] = 7;
    return (void *)room;
}
static long on_stack(void *(*act)(void *))
{
    pthread_attr_t attributes;
    pthread_t thread;
    char *below = (char *)mmap(NULL, 0x60000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *stack = below + 0x20000;
    munmap(below, 0x20000);
    mprotect(stack, 0x1000, PROT_NONE);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, 0x20000);
    pthread_create(&thread, &attributes, act, stack);
    return pthread_join(thread, NULL);
}
NOINLINE static long below_the_stack(void) { return on_stack(near_the_end); }

#if defined(__aarch64__)
/* A stack that is full to its last byte as a function begins. */
__asm__(".text\n.type fills, %function\nfills:\n.cfi_startproc\nstp x29, x30, [sp, #-64]!\n.cfi_def_cfa_offset 64\n"
        ".cfi_offset 29, -64\n.cfi_offset 30, -56\nbl fills\nldp x29, x30, [sp], #64\nret\n.cfi_endproc\n.size fills, .-fills\n");
static void *fills_from_a_multiple(void *stack)
{
    __asm__ volatile("mov x9, sp; and x9, x9, #-64; mov sp, x9; bl fills" : : : "x9", "x30", "memory");
    return stack;
}
NOINLINE static long overflow_at_the_end(void) { return on_stack(fills_from_a_multiple); }
/* The same where the caller's frame ends in the guard page, with bytes that it has not used yet. */
__asm__(".text\n.type fills_above, %function\nfills_above:\n.cfi_startproc\nsub sp, sp, #64\n.cfi_def_cfa_offset 64\n"
        "stp x29, x30, [sp, #48]\n.cfi_offset 29, -16\n.cfi_offset 30, -8\nbl fills_above\nldp x29, x30, [sp, #48]\n"
        "add sp, sp, #64\nret\n.cfi_endproc\n.size fills_above, .-fills_above\n");
static void *fills_from_beside_a_multiple(void *stack)
{
    __asm__ volatile("mov x9, sp; and x9, x9, #-64; sub x9, x9, #48; mov sp, x9; bl fills_above" : : : "x9", "x30", "memory");
    return stack;
}
NOINLINE static long overflow_of_unused(void) { return on_stack(fills_from_beside_a_multiple); }
#endif
/* A recursion whose last frame reaches over the guard page, to where nothing is mapped. */
NOINLINE static long needs_much(long depth)
{
    volatile char room[0x8000];
    room[0] = (char)depth;
    return room[0] + depth;
}
NOINLINE static long fills_slowly(char *stack, long depth)
{
    if ((char *)__builtin_frame_address(0) - stack < 0x4000) return needs_much(depth);
    return fills_slowly(stack, depth + 1) + 1;
}
static void *fills_to_much(void *stack) { return (void *)fills_slowly((char *)stack, 1); }
NOINLINE static long overflow_over_the_guard(void) { return on_stack(fills_to_much); }
/* The same where something is mapped below the guard page: memset reaches it from there. */
AS_WRITTEN static void *filled(void *room, size_t bytes) { return memset(room, 7, bytes); }
NOINLINE static long fills_much(void)
{
    char room[0x8000];
    return (long)filled(room, sizeof room);
}
static void *fills_past(void *stack)
{
    char *at = (char *)__builtin_frame_address(0);
    mmap((char *)stack - 0x10000, 0x10000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    volatile char *room = (volatile char *)__builtin_alloca(at - (char *)stack - 0x4000);
    room[0] = (char)fills_much();
    return (void *)room;
}
NOINLINE static long overflow_past_the_guard(void) { return on_stack(fills_past); }
/* A signal whose frame has no room on the stack. */
static void nothing(int number) { hidden = number; }
NOINLINE static void *full(void *stack)
{
    char *at = (char *)__builtin_frame_address(0);
    volatile char *room = (volatile char *)__builtin_alloca(at - (char *)stack - 0x1000 - 700);
    room[0] = 1;
    pthread_kill(pthread_self(), SIGUSR1);
    return (void *)room;
}
NOINLINE static long signal_without_room(void)
{
    signal(SIGUSR1, nothing);
    pthread_kill(pthread_self(), SIGUSR1);
    return on_stack(full);
}
/* Probes the stack before the stack pointer is moved, as ___chkstk_darwin of Apple's libpthread and
 * code compiled with GCC's -fstack-check do. */
#if defined(__aarch64__)
__asm__(".text\n.type checks, %function\nchecks:\n.cfi_startproc\nstp x10, x11, [sp, #-16]\nmov x11, x1\nmov x10, sp\nsubs x10, x10, x9\n"
        "b.lo 1f\ncmp x10, x11\nb.lo 1f\nldp x10, x11, [sp, #-16]\nret\n1: ldur x11, [x11, #-8]\nret\n.cfi_endproc\n.size checks, .-checks\n");
__asm__(".text\n.type probes, %function\nprobes:\n.cfi_startproc\nstp x10, x11, [sp, #-16]\nmov x10, sp\n1: sub x10, x10, #1, lsl #12\n"
        "ldr x11, [x10]\nsub x9, x9, #1, lsl #12\ncmp x9, #1, lsl #12\nb.hi 1b\nldp x10, x11, [sp, #-16]\nret\n.cfi_endproc\n"
        ".size probes, .-probes\n");
__asm__(".text\n.type clears, %function\nclears:\n.cfi_startproc\nsub x10, sp, #32, lsl #12\nstr xzr, [x10, #4096]\nstr xzr, [x10, #544]\n"
        "ret\n.cfi_endproc\n.size clears, .-clears\n");
#define ROOM(function, stack) \
    __asm__ volatile("mov x9, #0x20000; mov x1, %0; bl " #function : : "r"(stack) : "x1", "x9", "x10", "x11", "x30", "memory")
static void *asks_gcc(void *stack) { ROOM(clears, (char *)stack + 0x1000); return stack; }
NOINLINE static long overflow_of_stack_check(void) { return on_stack(asks_gcc); }
#elif defined(__x86_64__)
__asm__(".text\n.type checks, %function\nchecks:\n.cfi_startproc\npushq %rcx\n.cfi_def_cfa_offset 16\nleaq 0x10(%rsp), %rcx\nsubq %rax, %rcx\n"
        "jb 1f\ncmpq %rcx, %rdx\nja 1f\npopq %rcx\nret\n1: movq %rdx, %rcx\ntestq %rcx, -8(%rcx)\npopq %rcx\nret\n.cfi_endproc\n"
        ".size checks, .-checks\n");
__asm__(".text\n.type probes, %function\nprobes:\n.cfi_startproc\npushq %rcx\n.cfi_def_cfa_offset 16\nleaq 0x10(%rsp), %rcx\n1: subq $0x1000, %rcx\n"
        "testq %rcx, (%rcx)\nsubq $0x1000, %rax\ncmpq $0x1000, %rax\nja 1b\npopq %rcx\nret\n.cfi_endproc\n.size probes, .-probes\n");
#define ROOM(function, stack) __asm__ volatile("call " #function : : "a"(0x20000), "d"(stack) : "memory")
#endif
static void *asks(void *stack) { ROOM(checks, (char *)stack + 0x1000); return stack; }
NOINLINE static long overflow_of_check(void) { return on_stack(asks); }
static void *asks_pages(void *stack) { ROOM(probes, (char *)stack + 0x1000); return stack; }
NOINLINE static long overflow_of_probe(void) { return on_stack(asks_pages); }

/* Cast to another structure than the parameter is declared to lead to. */
struct small { int number; };
AS_WRITTEN static long cast(struct small *small) { return ((struct picture *)small)->next != NULL; }
NOINLINE static long of_cast(void) { return cast((struct small *)pointer(0)) + 1; }
AS_WRITTEN static int each(int sum, int count) { return sum / count; }
NOINLINE static long of_count(void) { return each(HIDDEN(int, 9), HIDDEN(int, 0)) + 1; }

/* In the C library. */
NOINLINE static long copy_to_null(void) { memcpy(pointer(0), constant, HIDDEN(size_t, 40)); return 0; }
NOINLINE static long length_of_null(void) { return (long)strlen((const char *)pointer(0)); }

/* One bit of a good pointer. */
#define FLIPS(name, good, bit) \
    NOINLINE static long name(void) { return ((volatile struct row *)pointer((uintptr_t)(good) ^ (1ull << (bit))))->number; }
FLIPS(flipped_static_33, &a_row, 33)
FLIPS(flipped_static_41, &a_row, 41)
FLIPS(flipped_static_52, &a_row, 52)
FLIPS(flipped_constant_38, constant, 38)
FLIPS(flipped_code_30, &flipped_constant_38, 30)
NOINLINE static long flipped_stack(int bit)
{
    struct row local;
    memset(&local, 0, sizeof local);
    return ((volatile struct row *)pointer((uintptr_t)&local ^ (1ull << bit)))->number + local.number;
}
NOINLINE static long flipped_stack_36(void) { return flipped_stack(HIDDEN(int, 36)); }
NOINLINE static long flipped_stack_43(void) { return flipped_stack(HIDDEN(int, 43)); }
NOINLINE static long flipped_stack_50(void) { return flipped_stack(HIDDEN(int, 50)); }

#ifdef __cplusplus
#include "faults.hpp"
#endif

int main(int count, char **arguments)
{
    coroner_config *config = coroner_config_new("com.example.faults");
    if (count != 2 || config == NULL)
        return 2;
    coroner_config_set_store_dir(config, arguments[1]);
    coroner_config_set_stack_memory(config, 4096);
    if (coroner_install(config) != CORONER_STATUS_OK)
        return 4;
    return (int)FAULT();
}
