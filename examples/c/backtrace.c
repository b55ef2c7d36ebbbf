/*
 * Prints the stack of the calling thread, of another thread, and of all threads.
 *
 *     cc -g -O1 -o backtrace backtrace.c -I../../crates/bindings/ffi/include \
 *         libcoroner_ffi.a -lpthread -ldl -lm
 *     BACKTRACE_STORE=/tmp/backtrace ./backtrace
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coroner.h"

static volatile uint64_t worker_number;
static int pipe_of_worker[2];

static void each_frame(void *context, const coroner_named_frame *frame)
{
    printf("  %s%s + %llu\n", (const char *)context, frame->function ? frame->function : "?",
           (unsigned long long)frame->function_offset);
}

static void each_thread(void *context, uint64_t thread, const coroner_backtrace *backtrace)
{
    size_t count = 0;
    coroner_backtrace_addresses(backtrace, &count);
    ++*(int *)context;
    printf("  thread %llu: %zu frames\n", (unsigned long long)thread, count);
}

__attribute__((noinline)) static int wait_for_the_end(void)
{
    char byte;
    ssize_t length = read(pipe_of_worker[0], &byte, 1);
    return (int)length + 1;
}

static void *work(void *argument)
{
    (void)argument;
    worker_number = coroner_thread_id();
    return wait_for_the_end() > 0 ? NULL : (void *)1;
}

__attribute__((noinline)) static void inner(uint64_t *hash)
{
    coroner_backtrace here;
    coroner_capture_options options = {.size = sizeof options, .depth = 16};
    if (coroner_backtrace_current(&here, &options) != CORONER_STATUS_OK)
        exit(2);
    *hash = coroner_backtrace_hash(&here);
    puts("this thread:");
    coroner_backtrace_names(&here, each_frame, "");
    char text[64];
    size_t length = coroner_backtrace_text(&here, false, text, sizeof text);
    printf("text of %s bytes, %s\n", length >= sizeof text ? "more" : "less",
           strlen(text) < sizeof text ? "ended" : "not ended");
    coroner_backtrace_release(&here);
}

__attribute__((noinline)) static void outer(uint64_t *hash)
{
    inner(hash);
    __asm__ volatile("");
}

int main(void)
{
    uint64_t hashes[2];
    /* Both calls must be the same instruction, so that their stacks are equal: an optimiser unrolls
     * a short loop. */
    for (volatile int turn = 0; turn < 2; turn++)
        outer(&hashes[turn]);
    printf("hashes %s\n", hashes[0] == hashes[1] ? "agree" : "differ");

    coroner_backtrace other;
    if (coroner_backtrace_of_thread(&other, 1, NULL) != CORONER_STATUS_NOT_INSTALLED)
        return 3;
    coroner_config *config = coroner_config_new("com.example.backtrace");
    coroner_config_set_store_dir(config, getenv("BACKTRACE_STORE"));
    if (coroner_install(config) != CORONER_STATUS_OK) {
        fprintf(stderr, "%s\n", coroner_last_error());
        return 1;
    }
    pthread_t worker;
    if (pipe(pipe_of_worker) != 0 || pthread_create(&worker, NULL, work, NULL) != 0)
        return 1;
    while (worker_number == 0)
        usleep(1000);
    usleep(20000);
    if (coroner_backtrace_of_thread(&other, worker_number, NULL) != CORONER_STATUS_OK) {
        fprintf(stderr, "%s\n", coroner_last_error());
        return 4;
    }
    puts("the worker:");
    coroner_backtrace_names(&other, each_frame, "worker: ");
    coroner_backtrace_release(&other);

    int threads = 0;
    puts("all:");
    coroner_backtrace_of_all_threads(each_thread, &threads, NULL);
    printf("%d threads\n", threads);
    close(pipe_of_worker[1]);
    pthread_join(worker, NULL);
    return 0;
}
