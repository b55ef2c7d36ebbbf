/* A crash with or without one flipped bit: `program STORE MODE SEED`. Modes: pointer, code, clean.
 * Exits with status 9 if nothing crashes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "coroner.h"

#define NOINLINE __attribute__((noinline))

struct item {
    struct item *next;
    char name[24];
    int numbers[8];
    double share;
};

static uint64_t state;
/* splitmix64 */
static uint64_t chance(uint64_t below)
{
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return below ? z % below : z;
}

/* What was done to the memory, in the report's run: printed for who compares. */
static void said(uint64_t address, unsigned bit)
{
    printf("%llx %u\n", (unsigned long long)address, bit);
    fflush(stdout);
}

NOINLINE static long read_number(const volatile struct item *item) { return item->numbers[2] + 1; }
NOINLINE static void write_number(volatile struct item *item) { item->numbers[3] = 7; }
NOINLINE static double read_share(const volatile struct item *item) { return item->share * 2; }
NOINLINE static long read_next(struct item *const volatile *items) { return (*items)->numbers[0] + 2; }
NOINLINE static long length(const volatile char *text) { long n = 0; while (text[n]) n++; return n; }
NOINLINE static long use(void *at, unsigned how)
{
    switch (how) {
    case 0: return read_number(at) + 1;
    case 1: write_number(at); return 1;
    case 2: return (long)read_share(at) + 1;
    case 3: return read_next(at) + 1;
    default: return length(at) + 1;
    }
}

static struct item of_program;
static const struct item constant = { .name = "constant" };

NOINLINE static void *good_pointer(struct item *local)
{
    switch (chance(7)) {
    case 0: return local;
    case 1: return &of_program;
    case 2: return (void *)&constant;
    case 3: return calloc(1, sizeof(struct item));
    case 4: return calloc(1, 3 << 20);
    case 5: return (void *)(uintptr_t)&memcpy;
    default: return (void *)((uintptr_t)&good_pointer & ~7ul);
    }
}

static long flipped_pointer(void)
{
    struct item local;
    memset(&local, 0, sizeof local);
    uint64_t good = (uint64_t)good_pointer(&local);
    unsigned bit = (unsigned)chance(64);
    said(good, bit);
    return use((void *)(good ^ 1ull << bit), (unsigned)chance(5)) + local.numbers[0];
}

/* Some code to break. */
NOINLINE static long walk(struct item *item)
{
    long sum = 0;
    for (; item; item = item->next)
        sum += item->numbers[1] + (long)strlen(item->name);
    return sum;
}
NOINLINE static long hash(const char *text)
{
    unsigned long value = 5381;
    while (*text)
        value = value * 33 ^ (unsigned char)*text++;
    return (long)value;
}
NOINLINE static void sort(int *numbers, int count)
{
    for (int i = 1; i < count; i++) {
        int moved = numbers[i], at = i;
        for (; at > 0 && numbers[at - 1] > moved; at--)
            numbers[at] = numbers[at - 1];
        numbers[at] = moved;
    }
}
NOINLINE static double mean(const struct item *items, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += items[i].share / (1 + items[i].numbers[0]);
    return sum / count;
}
NOINLINE static struct item *add(struct item *list, const char *name)
{
    struct item *item = calloc(1, sizeof *item);
    if (item == NULL)
        abort();
    strncpy(item->name, name, sizeof item->name - 1);
    item->next = list;
    return item;
}
NOINLINE static long spread(struct item **items, int count)
{
    long found = 0;
    for (int i = 0; i < count; i++)
        if (items[i] && items[i]->next)
            found += items[i]->next->numbers[i & 7];
    return found;
}

static long work(void)
{
    static const char *const names[] = { "rye", "wheat", "spelt", "oats" };
    struct item *list = NULL;
    struct item *all[4];
    int numbers[16];
    for (int i = 0; i < 4; i++)
        all[i] = list = add(list, names[i]);
    for (int i = 0; i < 16; i++)
        numbers[i] = (int)chance(1000);
    sort(numbers, 16);
    return walk(list) + hash(list->name) + (long)mean(list, 1) + spread(all, 4) + numbers[3];
}

static long flipped_code(void)
{
    unsigned char *const functions[] = { (unsigned char *)walk, (unsigned char *)hash, (unsigned char *)sort, (unsigned char *)mean,
                                         (unsigned char *)add, (unsigned char *)spread };
    unsigned char *at = functions[chance(6)] + chance(64);
    unsigned bit = (unsigned)chance(8);
    unsigned char *page = (unsigned char *)((uintptr_t)at & ~4095ul);
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return 0;
    *at ^= (unsigned char)(1 << bit);
    mprotect(page, 8192, PROT_READ | PROT_EXEC);
    said((uint64_t)at, bit);
    alarm(2);
    return work();
}

/* Bad pointers as programs have them, with no bit flipped. */
static long clean(void)
{
    struct item local;
    memset(&local, 0, sizeof local);
    uint64_t good = (uint64_t)good_pointer(&local), bad = 0;
    switch (chance(9)) {
    case 0: bad = chance(4096); break;
    case 1: bad = chance(0); break;
    case 2: bad = chance(1ull << 47); break;
    case 3: bad = good & 0xffffffff; break;
    case 4: bad = good + chance(1ull << 32) + (1 << 24); break;
    case 5: bad = good - chance(1ull << 32) - (1 << 24); break;
    case 6: memcpy(&bad, "a string", 8); bad += chance(256); break;
    case 7: bad = 0x0101010101010101ull * chance(256); break;
    /* Behind the end of what was allocated. */
    default: bad = (uint64_t)mmap(NULL, 1 << 24, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + (1ull << (24 + chance(14))); break;
    }
    said(bad, 0);
    return use((void *)bad, (unsigned)chance(5)) + local.numbers[0];
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    coroner_config *config = coroner_config_new("com.example.flips");
    coroner_config_set_store_dir(config, arguments[1]);
    if (coroner_install(config) != CORONER_STATUS_OK)
        return 4;
    state = strtoull(arguments[3], NULL, 10);
    long done = strcmp(arguments[2], "pointer") == 0 ? flipped_pointer()
              : strcmp(arguments[2], "code") == 0    ? flipped_code()
                                                     : clean();
    return done == 0x7eed ? 8 : 9;
}
