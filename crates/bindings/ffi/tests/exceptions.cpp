// C++ exceptions, each by name. Built and run by exceptions.rs.

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coroner.h"
#include "shop.h"

extern "C" int library_calls(int (*function)(int), int argument);

namespace shop {

struct Plain {
    int number;
};

NOINLINE int throws(int what)
{
    volatile int kind = what;
    switch (kind) {
    case 0: throw std::runtime_error("out of cheese");
    case 1: throw DoorError();
    case 2: throw std::string("a thrown string that is longer than any small buffer");
    case 3: throw std::string("short");
    case 4: throw "a literal";
    case 5: throw -42;
    case 6: throw Plain{3};
    case 7: throw new std::logic_error("on the heap");
    case 8: throw BadWhat(BadWhat::faults);
    case 9: throw BadWhat(BadWhat::hangs);
    case 10: throw BadWhat(BadWhat::throws);
    case 11: throw BadWhat(BadWhat::aborts);
    case 12: throw 18446744073709551615ul;
    }
    return kind;
}

// A frame between throw and catch, without frame pointer (-fomit-frame-pointer) and with saved
// registers.
NOINLINE int passes(int what)
{
    volatile int after = library_calls(throws, what);
    return after + 1;
}

SHOP_CATCHES_AND_THROWS(passes)

NOINLINE int never_throws(int what) noexcept
{
    return passes(what) + 1;
}

NOINLINE int in_noexcept(int what)
{
    volatile int after = never_throws(what);
    return after + 1;
}

// std::exception_ptr: thrown on one thread, uncaught on another.
NOINLINE int other_thread(int what)
{
    std::exception_ptr kept;
    std::thread thread([&] {
        try {
            passes(what);
        } catch (...) {
            kept = std::current_exception();
        }
    });
    thread.join();
    std::rethrow_exception(kept);
}

// An exception that was created but not thrown: the runtime fills in its header in a separate
// function.
NOINLINE int created_without_throw(int)
{
    std::rethrow_exception(std::make_exception_ptr(std::runtime_error("out of cheese")));
}

// libstdc++ reads its own header in front of any exception that it has caught, so there must be
// memory.
static struct {
    char before[128];
    _Unwind_Exception exception;
} foreign_exception;

NOINLINE int raises_foreign()
{
    static const char name[9] = "ELSE\0LNG";
    unsigned long value = 0;
    for (int index = 0; index < 8; ++index)
        value = value << 8 | static_cast<unsigned char>(name[index]);
    std::memcpy(&foreign_exception.exception.exception_class, &value, sizeof value);
    _Unwind_RaiseException(&foreign_exception.exception);
    return 0;
}

// Caught before terminating: for an uncaught foreign exception, libstdc++ terminates without having
// caught it.
NOINLINE int foreign(int)
{
    try {
        return raises_foreign();
    } catch (...) {
        std::terminate();
    }
}

NOINLINE int terminates(int)
{
    std::terminate();
}

// Throws and catches `thousands` thousand times on each of eight threads, then throws without a
// catch.
NOINLINE int many(int thousands)
{
    std::atomic<long> caught{0};
    auto work = [&](int rounds) {
        for (int round = 0; round < rounds; ++round) {
            try {
                passes(round % 2 ? 5 : 0);
            } catch (int) {
                ++caught;
            } catch (const std::exception &) {
                ++caught;
            }
        }
    };
    // Resident memory; under an emulator, whose own memory grows too, allocated memory.
    auto resident = [] {
        if (std::getenv("COUNT_ALLOCATED"))
#ifdef __BIONIC__
            return static_cast<long>(mallinfo().uordblks / 1024);
#else
            return static_cast<long>(mallinfo2().uordblks / 1024);
#endif
        long pages = 0;
        if (FILE *file = std::fopen("/proc/self/statm", "r")) {
            if (std::fscanf(file, "%*d %ld", &pages) != 1)
                pages = -1;
            std::fclose(file);
        }
        return pages * 4;
    };
    auto all = [&](int rounds) {
        std::vector<std::thread> threads;
        for (int index = 0; index < 8; ++index)
            threads.emplace_back(work, rounds);
        for (auto &thread : threads)
            thread.join();
    };
    all(1000);
    long before = resident();
    all(1000 * (thousands - 1));
    std::printf("caught %ld, grown by %ld KiB\n", caught.load(), resident() - before);
    std::fflush(stdout);
    return passes(1);
}

} // namespace shop

static int (*act)(int);
static int what;

static void *on_thread(void *)
{
    shop::gathers();
    act(what);
    return nullptr;
}

// The app's own terminate handler, set before Coroner's.
static void apps_own()
{
    std::printf("the app's own terminate handler\n");
    std::fflush(stdout);
    _exit(7);
}

// The same, but slow, so that other threads continue meanwhile.
static void apps_own_slow()
{
    sleep(1);
    apps_own();
}

// The app's own handler of SIGABRT, set before Coroner's: sends the process the signal again, which
// another thread gets, because this one blocks it.
static void sends_again(int)
{
    static volatile sig_atomic_t calls;
    calls = calls + 1;
    if (calls == 1) {
        kill(getpid(), SIGABRT);
        pause();
    }
    signal(SIGABRT, SIG_DFL);
    raise(SIGABRT);
}

struct Act {
    const char *name;
    int (*function)(int);
};

static const Act acts[] = {
    {"passes", shop::passes},
    {"rethrows", shop::rethrows},
    {"nests", shop::nests},
    {"noexcept", shop::in_noexcept},
    {"other-thread", shop::other_thread},
    {"created", shop::created_without_throw},
    {"foreign", shop::foreign},
    {"terminates", shop::terminates},
    {"many", shop::many},
};

// exceptions STORE [ACT WHAT [thread|thread-sends-again|two|two-slow|exits]]
int main(int argc, char **argv)
{
    const char *how = argc > 4 ? argv[4] : "";
    if (std::strcmp(how, "exits") == 0)
        std::set_terminate(apps_own);
    if (std::strcmp(how, "two-slow") == 0)
        std::set_terminate(apps_own_slow);
    if (std::strcmp(how, "thread-sends-again") == 0)
        signal(SIGABRT, sends_again);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    coroner_config *config = coroner_config_new("com.example.exceptions");
    coroner_config_set_store_dir(config, argv[1]);
    if (coroner_install(config) != CORONER_STATUS_OK) {
        std::fprintf(stderr, "%s\n", coroner_last_error());
        return 3;
    }
    if (argc > 3) {
        for (const Act &one : acts) {
            if (std::strcmp(one.name, argv[2]) == 0)
                act = one.function;
        }
        what = std::atoi(argv[3]);
        const bool two = std::strncmp(how, "two", 3) == 0;
        if (std::strncmp(how, "thread", 6) == 0 || two) {
            pthread_t thread;
            shop::together = two ? 2 : 1;
            if (shop::together == 2)
                pthread_create(&thread, nullptr, on_thread, nullptr);
            pthread_create(&thread, nullptr, on_thread, nullptr);
            pthread_join(thread, nullptr);
        } else {
            act(what);
        }
        return 5;
    }
    return coroner_flush(30000) == CORONER_STATUS_OK ? 0 : 4;
}
