// Stops (by a trap) where its argument says, for a tracer to walk the stack. Built without unwind
// data.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION __attribute__((noinline, noclone))
// What keeps the call before it from being a jump.
#define AND_RETURN __asm__ volatile("")

FUNCTION void stop(void) { __asm__ volatile("int3"); AND_RETURN; }
FUNCTION __attribute__((noreturn)) void stop_for_good(void) { for (;;) stop(); }
FUNCTION void inner(void) { stop(); AND_RETURN; }
FUNCTION void handler(int signal) { (void)signal; inner(); AND_RETURN; }
FUNCTION void handler_of_no_return(int signal) { (void)signal; stop_for_good(); }
FUNCTION int crash(volatile int *pointer) { return *pointer + 1; }
FUNCTION void *thread(void *argument) { inner(); AND_RETURN; return argument; }
FUNCTION void call(void (*function)(void)) { function(); AND_RETURN; }

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "inner")) {
        call(inner);
    } else if (!strcmp(what, "no return")) {
        call(stop_for_good);
    } else if (!strcmp(what, "thread")) {
        pthread_t other;
        pthread_create(&other, NULL, thread, NULL);
        pthread_join(other, NULL);
    } else {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = !strcmp(what, "handler") ? handler : handler_of_no_return;
        if (!strcmp(what, "bad handler")) action.sa_handler = (void (*)(int))16;
        sigaction(SIGSEGV, &action, NULL);
        crash((volatile int *)8);
        AND_RETURN;
    }
    return 0;
}
