// Crashes specific to C and C++, each by name. Built and run by examples.rs.

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "coroner.h"

namespace foreign {

__attribute__((noinline)) void throws_what_nobody_catches()
{
    throw std::runtime_error("nobody catches this");
}

__attribute__((noinline)) int overflows(volatile char *above)
{
    volatile char frame[512];
    frame[0] = above[0];
    // Never true, but no compiler can prove it.
    if (above[0] == 'x')
        return 0;
    return overflows(frame) + frame[0];
}

__attribute__((noinline)) int calls_pure()
{
    struct Base {
        Base() { call(); }
        virtual ~Base() {}
        void call() { pure(); }
        virtual void pure() = 0;
    };
    struct Derived : Base {
        void pure() override {}
    };
    Derived derived;
    return 0;
}

} // namespace foreign

static void *overflow_thread(void *)
{
    char first[1] = {0};
    foreign::overflows(first);
    return nullptr;
}

int main(int argc, char **argv)
{
    const char *act = argc > 1 ? argv[1] : "";
    coroner_config *config = coroner_config_new("com.example.foreign");
    coroner_config_set_store_dir(config, std::getenv("FOREIGN_STORE"));
    coroner_config_set_symbol_names(config, std::strcmp(act, "pure") == 0);
    if (coroner_install(config) != CORONER_STATUS_OK) {
        std::fprintf(stderr, "%s\n", coroner_last_error());
        return 3;
    }
    if (std::strcmp(act, "uncaught") == 0) {
        foreign::throws_what_nobody_catches();
    } else if (std::strcmp(act, "overflow") == 0) {
        pthread_t thread;
        pthread_create(&thread, nullptr, overflow_thread, nullptr);
        pthread_join(thread, nullptr);
    } else if (std::strcmp(act, "pure") == 0) {
        return foreign::calls_pure();
    }
    coroner_last_run_info last = {};
    last.size = sizeof last;
    if (coroner_last_run(&last) == CORONER_STATUS_OK && last.outcome == CORONER_OUTCOME_CRASHED)
        std::printf("the last run crashed: %s\n", last.event_id);
    return coroner_flush(10000) == CORONER_STATUS_OK ? 0 : 4;
}
