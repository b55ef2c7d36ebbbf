// Throws, catches, rethrows and copies exceptions: as a plugin (its function), or as a program
// (with the store's folder, empty to leave Coroner out, and perhaps "dies").
#include <cstring>
#include <exception>
#include <stdexcept>

struct Counts {
    int *uncaught;
    ~Counts() { *uncaught = std::uncaught_exceptions(); }
};

static void throws(int *uncaught) {
    Counts counts{uncaught};
    throw std::runtime_error("out of cheese");
}

// Returns 0 if the runtime behaves as specified.
extern "C" int use_exceptions(void) {
    int uncaught = 0;
    bool caught = false;
    try {
        try {
            throws(&uncaught);
        } catch (const std::exception &) {
            throw;
        }
    } catch (const std::exception &error) {
        caught = std::strcmp(error.what(), "out of cheese") == 0;
    }
    if (!caught)
        return 11;
    if (uncaught != 1 || std::uncaught_exceptions() != 0)
        return 12;
    std::exception_ptr copy = std::make_exception_ptr(std::logic_error("copied"));
    try {
        std::rethrow_exception(copy);
    } catch (const std::logic_error &) {
        return 0;
    }
    return 13;
}

#ifdef PROGRAM
#include "coroner.h"

#include <cstdio>
#include <cstdlib>

static std::terminate_handler before;

static void on_terminate() {
    std::puts("own handler");
    std::fflush(stdout);
    if (before)
        before();
    std::abort();
}

int main(int count, char **arguments) {
    if (*arguments[1]) {
        coroner_config *config = coroner_config_new("own_runtime");
        coroner_config_set_store_dir(config, arguments[1]);
        if (coroner_install(config) != CORONER_STATUS_OK)
            return 3;
    }
    int result = use_exceptions();
    const char *death = count > 2 ? arguments[2] : "";
    if (std::strstr(death, "handler"))
        before = std::set_terminate(on_terminate);
    if (std::strcmp(death, "own handler") == 0)
        before = nullptr;
    if (std::strcmp(death, "restored handler") == 0) {
        result = use_exceptions();
        std::set_terminate(before);
    }
    if (result == 0 && *death)
        throw std::runtime_error("boom");
    return result;
}
#endif
