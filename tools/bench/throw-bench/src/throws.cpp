// What is thrown: a std::runtime_error, through `depth` frames, caught where it began.

#include <stdexcept>

#ifdef TAKE_BACKTRACE
#include <dlfcn.h>
#include <execinfo.h>

// The peer: what programs do that want the stack of a throw and have no more than the C library.
static thread_local void *frames[64];
static thread_local int count;

extern "C" void __cxa_throw(void *object, void *type, void (*destructor)(void *))
{
    typedef void (*Throw)(void *, void *, void (*)(void *)) __attribute__((noreturn));
    static const Throw next = reinterpret_cast<Throw>(dlsym(RTLD_NEXT, "__cxa_throw"));
    count = backtrace(frames, 64);
    next(object, type, destructor);
}
#endif

static __attribute__((noinline)) int frame(int depth, volatile int *deepest)
{
    if (depth <= 1) {
        *deepest += 1;
        throw std::runtime_error("the bottom");
    }
    volatile int here = depth;
    return frame(depth - 1, deepest) + here;
}

// Its own frame is one of `depth`, and of another size each time.
static __attribute__((noinline)) int moved(int depth, volatile int *deepest, int changes)
{
    volatile char *room = static_cast<volatile char *>(__builtin_alloca(64 * (1 + changes)));
    room[0] = 1;
    return frame(depth - 1, deepest) + room[0];
}

// 0: every throw has the stack of the one before. 1: it is up to six frames deeper. 2: all of it
// lies elsewhere.
extern "C" long throw_and_catch(int depth, long rounds, int stacks)
{
    volatile int deepest = 0;
    long caught = 0;
    for (long round = 0; round < rounds; ++round) {
        try {
            const int changes = static_cast<int>(round % 7);
            if (stacks == 2)
                moved(depth, &deepest, changes);
            else
                frame(stacks == 1 ? depth + changes : depth, &deepest);
        } catch (const std::exception &) {
            ++caught;
        }
    }
    return caught;
}
