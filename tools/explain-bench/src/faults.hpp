/* Faults of C++. */
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

struct shape {
    virtual long area() { return 1; }
    virtual long edge() { return 2; }
    virtual ~shape() {}
    long width;
};

NOINLINE static long virtual_of_null(void) { return ((shape *)pointer(0))->edge(); }
NOINLINE static long virtual_of_freed(void) { return ((shape *)pointer(0x5a5a5a5a5a5a5a5a))->edge(); }
NOINLINE static long virtual_without_table(void)
{
    static uintptr_t object[4];
    return ((shape *)pointer((uintptr_t)object))->edge();
}
NOINLINE static long virtual_of_bad_table(void)
{
    static uintptr_t object[4] = {0xdddddddddddddddd};
    return ((shape *)pointer((uintptr_t)object))->edge();
}
NOINLINE static long member_of_null(void) { return ((volatile shape *)pointer(0))->width; }
NOINLINE static long throws(void) { throw std::runtime_error("out of bread"); }
NOINLINE static long string_of_null(void) { return (long)std::string((const char *)pointer(0)).size(); }
NOINLINE static long out_of_range(void) { return std::vector<int>(3).at(HIDDEN(size_t, 9)); }
NOINLINE static long empty_function(void) { return std::function<long()>()(); }
NOINLINE static void never_throws(void) noexcept { throw 7; }
NOINLINE static long terminates(void) { never_throws(); return 0; }
NOINLINE static long element_of_null(void) { return (*(std::vector<long> *)pointer(0))[0]; }
NOINLINE static long string_written(void) { ((std::string *)pointer(0x20))->clear(); return 0; }
AS_WRITTEN static long width_of_it(shape &there) { return there.width + 1; }
NOINLINE static long of_reference(void) { return width_of_it(*(shape *)pointer(0)) + 1; }

struct holder {
    long depth, width;
    AS_WRITTEN long width_of() { return width + 1; }
};
NOINLINE static long this_is_null(void) { return ((holder *)pointer(0))->width_of() + 1; }

struct unfinished {
    unfinished() { call(); }
    NOINLINE void call() { body(); }
    virtual void body() = 0;
};
struct finished : unfinished {
    void body() override {}
};
NOINLINE static long pure_virtual(void) { finished made; return pointer((uintptr_t)&made) != nullptr; }
