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

// With `varied` no throw has the stack of the one before: it is up to six frames deeper.
extern "C" long throw_and_catch(int depth, long rounds, bool varied)
{
    volatile int deepest = 0;
    long caught = 0;
    for (long round = 0; round < rounds; ++round) {
        try {
            frame(varied ? depth + static_cast<int>(round % 7) : depth, &deepest);
        } catch (const std::exception &) {
            ++caught;
        }
    }
    return caught;
}
