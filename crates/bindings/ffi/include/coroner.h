/*
 * Coroner: a crash reporter for apps in C, C++, Objective-C and Swift.
 *
 *     coroner_config *config = coroner_config_new("com.example.paint");
 *     coroner_config_set_version(config, "2.1.0");
 *     if (coroner_install(config) != CORONER_STATUS_OK)
 *         fprintf(stderr, "no crash reports: %s\n", coroner_last_error());
 *
 * Link with libcoroner_ffi (static or shared). All texts are UTF-8 and end with a NUL; they are copied, and belong to the
 * caller before and after. All functions may be called from any thread, none from a signal handler.
 *
 * This file is made by `cargo xtask header` from crates/bindings/ffi. Don't edit it.
 */

#ifndef CORONER_H
#define CORONER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// The version of this header, to compare with what coroner_version returns.
#define CORONER_VERSION_MAJOR 0

// See CORONER_VERSION_MAJOR.
#define CORONER_VERSION_MINOR 1

// See CORONER_VERSION_MAJOR.
#define CORONER_VERSION_PATCH 0

// How a call went.
typedef enum {
    // Done.
    CORONER_STATUS_OK = 0,
    // An argument is NULL where it may not be, not UTF-8, or out of range.
    CORONER_STATUS_INVALID_ARGUMENT = 1,
    // Coroner is installed already, in this process.
    CORONER_STATUS_ALREADY_INSTALLED = 2,
    // Coroner is not installed in this process.
    CORONER_STATUS_NOT_INSTALLED = 3,
    // The operating system refused something.
    CORONER_STATUS_SYSTEM = 4,
    // There is no room for it: a limit of the run state is reached.
    CORONER_STATUS_FULL = 5,
    // It did not come to its end in the time given.
    CORONER_STATUS_TIMED_OUT = 6,
    // A mistake in Coroner itself was stopped before it could reach the app.
    CORONER_STATUS_INTERNAL = 7,
} coroner_status;

// How a run ended.
typedef enum {
    // There was no run before this one.
    CORONER_OUTCOME_FIRST_LAUNCH = 0,
    // The app ended by itself.
    CORONER_OUTCOME_CLEAN_EXIT = 1,
    // It was asked to end by SIGTERM.
    CORONER_OUTCOME_TERMINATED = 2,
    // It crashed.
    CORONER_OUTCOME_CRASHED = 3,
    // Coroner was uninstalled while it ran.
    CORONER_OUTCOME_UNINSTALLED = 4,
    // It ended without a trace: killed, out of memory, power failure.
    CORONER_OUTCOME_UNKNOWN = 5,
    // It did not answer when it was ended.
    CORONER_OUTCOME_HUNG = 6,
    // The system ended it to have its memory.
    CORONER_OUTCOME_OUT_OF_MEMORY = 7,
    // Its user ended it.
    CORONER_OUTCOME_ENDED_BY_USER = 8,
    // The system ended it for another reason.
    CORONER_OUTCOME_ENDED_BY_SYSTEM = 9,
    // It ended by a signal that ends a process by default and is no crash: Ctrl-C, a hangup, an alarm.
    CORONER_OUTCOME_ENDED_BY_SIGNAL = 10,
    // The machine was started again: a reboot, a power failure.
    CORONER_OUTCOME_SYSTEM_RESTART = 11,
    // The kernel killed it at the limit of its processor time.
    CORONER_OUTCOME_CPU_LIMIT = 12,
    // It was ended while a debugger was attached.
    CORONER_OUTCOME_DEBUGGED = 13,
} coroner_outcome;

// Which threads get an alternate signal stack, without which a stack overflow can't be reported.
typedef enum {
    // All.
    CORONER_ALTERNATE_STACKS_EVERYWHERE = 0,
    // Only the thread that installs and those that call coroner_attach_current_thread.
    CORONER_ALTERNATE_STACKS_ATTACHED = 1,
    // None: the app looks after it.
    CORONER_ALTERNATE_STACKS_LEAVE = 2,
} coroner_alternate_stacks;

// What a sink of the app's made of a report, as coroner_sink_deliver returns it.
typedef enum {
    // It has it, for good.
    CORONER_DELIVERED_TAKEN = 0,
    // It will never take it, and is not asked again.
    CORONER_DELIVERED_REJECTED = 1,
    // It could not take it now: it is asked again at a launch or coroner_flush, a minute later at the earliest.
    CORONER_DELIVERED_RETRY = 2,
} coroner_delivered;

// The language of an exception.
typedef enum {
    // C++.
    CORONER_EXCEPTION_LANGUAGE_CPP = 1,
    // Objective-C.
    CORONER_EXCEPTION_LANGUAGE_OBJ_C = 2,
    // Rust.
    CORONER_EXCEPTION_LANGUAGE_RUST = 3,
    // Swift.
    CORONER_EXCEPTION_LANGUAGE_SWIFT = 4,
    // JavaScript, for coroner_report_foreign_exception, as all below.
    CORONER_EXCEPTION_LANGUAGE_JAVASCRIPT = 6,
    // C# and what else runs on .NET.
    CORONER_EXCEPTION_LANGUAGE_CSHARP = 7,
    // Dart.
    CORONER_EXCEPTION_LANGUAGE_DART = 8,
    // Lua.
    CORONER_EXCEPTION_LANGUAGE_LUA = 9,
    // Python.
    CORONER_EXCEPTION_LANGUAGE_PYTHON = 10,
    // Ruby.
    CORONER_EXCEPTION_LANGUAGE_RUBY = 11,
    // PHP.
    CORONER_EXCEPTION_LANGUAGE_PHP = 12,
} coroner_exception_language;

// How grave a breadcrumb is.
typedef enum {
    // For developers.
    CORONER_LEVEL_DEBUG = 1,
    // As it should be.
    CORONER_LEVEL_INFO = 2,
    // Not quite.
    CORONER_LEVEL_WARNING = 3,
    // Wrong.
    CORONER_LEVEL_ERROR = 4,
    // The end.
    CORONER_LEVEL_FATAL = 5,
} coroner_level;

// What an app decides before coroner_install: made by coroner_config_new, given to coroner_install or freed by
// coroner_config_free. One thread at a time may use it.
typedef struct coroner_config coroner_config;

// Is called when the process crashes, when all else is in the report: writes at most `room` bytes to `into` and returns how many. It must be
// async-signal-safe: it may not allocate, take a lock, wait, or leave by longjmp or an exception.
typedef size_t (*coroner_crash_callback)(void *context, uint8_t *into, size_t room);

// The addresses of a thread's stack at one moment, innermost first. The memory is the caller's, on its stack or elsewhere, and need not be
// initialised; the functions that fill it in allocate nothing. What is in it is released by coroner_backtrace_release, once.
typedef struct {
    // Coroner's own: what there is today, and room for more.
    uint64_t reserved[144];
} coroner_backtrace;

// What to capture. Zero in all fields but `size` is the default.
typedef struct {
    // `sizeof(coroner_capture_options)`: which fields the caller knows. Those after it are 0.
    size_t size;
    // The greatest number of frames, at most 128; 0 for 128.
    uint32_t depth;
    // Frames left out at the innermost end.
    uint32_t skip;
    // Only frames of the app's own images: the program, and those of coroner_set_in_app_images.
    bool in_app_only;
    // At an async function of Swift's the walk goes to the executor that runs it, and not to those that wait for it.
    bool without_swift_async;
    // Another thread is stopped by ptrace, from a helper process, so that none of its system calls ends with EINTR. It takes longer.
    // Linux only: elsewhere no call ends.
    bool by_ptrace;
} coroner_capture_options;

// Called with each thread; `backtrace` is NULL if it did not answer, and is released when this returns.
typedef void (*coroner_each_thread)(void *context,
                                    uint64_t thread,
                                    const coroner_backtrace *backtrace);

// A frame of coroner_backtrace_names.
typedef struct {
    // The frame's address: after a call, but for the innermost of another thread and those that a signal interrupted.
    uint64_t address;
    // The file name of the image that it is in; NULL if it is in none.
    const char *image;
    // The address relative to the image's first byte.
    uint64_t image_offset;
    // The function, demangled; NULL if it is not known.
    const char *function;
    // The address relative to the function's first byte.
    uint64_t function_offset;
    // Whether it is the app's own code: its image is, and the function is no runtime's.
    bool in_app;
} coroner_named_frame;

// Called with each frame, innermost first. Its texts are valid until it returns.
typedef void (*coroner_each_frame)(void *context, const coroner_named_frame *frame);

// What Android's ApplicationExitInfo says of the end of an earlier process of the app.
typedef struct {
    // `sizeof(coroner_exit_info)`: which fields the caller knows. Those after it are 0.
    size_t size;
    // getPid.
    uint32_t pid;
    // getReason.
    int32_t reason;
    // getStatus.
    int32_t status;
    // getImportance.
    int32_t importance;
    // getTimestamp: milliseconds since 1970.
    uint64_t timestamp_ms;
    // getRss, kilobytes.
    uint64_t rss_kb;
    // getPss, kilobytes.
    uint64_t pss_kb;
    // getDescription; NULL if there is none.
    const char *description;
    // All bytes of getTraceInputStream; NULL if there are none.
    const uint8_t *trace;
    // How many they are.
    size_t trace_length;
} coroner_exit_info;

// An error of a system that has domains and codes: `NSError`, or what Swift makes one of.
typedef struct {
    // Its domain, such as `NSCocoaErrorDomain`, or a type of Swift's: the exception's type.
    const char *domain;
    // Its code in that domain.
    int64_t code;
    // What it says of itself, or NULL.
    const char *description;
} coroner_coded_error;

// A frame of an exception of a language whose runtime walks its own stacks.
typedef struct {
    // The function; may be NULL.
    const char *function;
    // Its source file, or NULL.
    const char *file;
    // The line in it, from 1; 0 where it is not known.
    uint32_t line;
    // The column, from 1; 0 where it is not known.
    uint32_t column;
    // Whether it is the app's own code, and not that of the runtime or a library.
    bool in_app;
} coroner_exception_frame;

// A report that a sink of the app's is given. All of it is valid until the function returns.
typedef struct {
    // The event id: 32 hexadecimal digits. The same report may come twice, and has the same id then.
    const char *event_id;
    // The report as JSON (docs/report-format.md). NULL in a library without the feature `json`, such as the lean one.
    const char *json;
    // The report as a file, as a folder has it (`.coroner`): what the dying process wrote, with tags, user and breadcrumbs. `coroner show` reads it. Secrets
    // in its texts are not hidden.
    const uint8_t *raw;
    // How many bytes `raw` has.
    size_t raw_length;
} coroner_given_report;

// Takes a report; returns one of coroner_delivered. Any other number is taken for CORONER_DELIVERED_RETRY. It may take its time.
typedef int32_t (*coroner_sink_deliver)(void *context, const coroner_given_report *report);

// Sees a report as JSON; returns whether the sinks get it.
typedef bool (*coroner_before_deliver)(void *context, const char *json);

// Is called with the event id of the crash, 32 hexadecimal digits; empty if it left no report.
typedef void (*coroner_crashed_last_run)(void *context, const char *event_id);

// How the last run ended, filled in by coroner_last_run.
typedef struct {
    // `sizeof(coroner_last_run_info)`, which the caller sets: no field after it is filled in.
    size_t size;
    // How it ended.
    coroner_outcome outcome;
    // The event id of its report as 32 hexadecimal digits and a NUL; empty if it left none.
    char event_id[33];
    // Milliseconds from install to the crash, or to the report of the hang; 0 if it ended otherwise.
    uint64_t ran_for_ms;
} coroner_last_run_info;

// A register that was saved; see coroner_unwind_rule.
typedef struct {
    // Its number in DWARF.
    uint8_t number;
    // Where it was saved: so many bytes from the canonical frame address, a multiple of 8, mostly below 0.
    int32_t offset;
} coroner_saved_register;

// How the caller of a frame is found, at every instruction of a range: where the stack pointer was before the call (the canonical
// frame address), and where, from there, the caller's registers were saved.
//
// Registers have the numbers of DWARF. x86_64: 7 is rsp, 6 rbp, 16 the return address; 3 (rbx) and 12 to 15 (r12 to r15) can be
// saved, too. arm64: 31 is sp, 29 x29 (the frame pointer), 30 x30 (the return address); 19 to 28 can be saved, too.
//
// A frame record 0xd0 bytes above the stack pointer, as that of ART's generic JNI trampoline, is on x86_64 the canonical frame
// address 7 + 0xe0 with {6, -16} and {16, -8} saved, on arm64 31 + 0xe0 with {29, -16} and {30, -8}.
typedef struct {
    // `sizeof(coroner_unwind_rule)`: which fields the caller knows. Those after it are 0.
    size_t size;
    // The canonical frame address is this register's value ...
    uint8_t cfa_register;
    // ... and so many bytes.
    int32_t cfa_offset;
    // The registers that were saved. Without 16 on x86_64 the return address is 8 bytes below the canonical frame address; without
    // 30 on arm64 it is in x30. Those that a call preserves and that are not named are the caller's still.
    const coroner_saved_register *saved;
    // How many there are; with 0 `saved` may be NULL.
    size_t saved_count;
    // Stacks end in this range: a thread's or coroutine's first function. The rest is not looked at.
    bool outermost;
} coroner_unwind_rule;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Registers memory, `size` bytes from `start`, whose content goes with each report of this process as an attachment of that name: a ring of log
// lines, a game's state. It is read when the process crashes, guarded, the first 60 KiB of it. Replaces what has the same name. At most 16; can be
// called before and after coroner_install.
//
// The caller sees to it that:
// `name` is a text that ends with a NUL. `start` need not stay valid: memory that is gone is left out.
coroner_status coroner_register_memory(const char *name,
                                       const void *start,
                                       size_t size);

// The memory with that name goes with reports no longer. Does nothing if there is none.
//
// The caller sees to it that:
// `name` is a text that ends with a NUL.
coroner_status coroner_unregister_memory(const char *name);

// Has `callback(context, into, room)` called when this process crashes, in place of the one before; NULL for none. What it writes, at most 60 KiB,
// is an attachment `crash_callback` of the report. A fault in it ends it alone, and so does the report's deadline. Not for what the process
// survives, hangs, or children made by fork.
//
// The caller sees to it that:
// `callback` is async-signal-safe, and `context` valid for it as long as it is set.
coroner_status coroner_set_crash_callback(coroner_crash_callback callback,
                                          void *context);

// The calling thread's number, as coroner_backtrace_of_thread takes it: gettid on Linux, pthread_threadid_np on Apple's systems.
uint64_t coroner_thread_id(void);

// Captures the calling thread's stack, beginning with the caller of this function. It takes addresses only: no allocation, no lock,
// some nanoseconds a frame. It works before coroner_install, too. `options` may be NULL.
//
// The caller sees to it that:
// `into` is NULL or points to memory for it. `options` is NULL or points to as many bytes as its `size` says.
coroner_status coroner_backtrace_current(coroner_backtrace *into,
                                         const coroner_capture_options *options);

// Captures the stack of a thread of this process, by the number that coroner_thread_id gives on that thread. Another one is stopped for the
// microseconds that this takes: CORONER_STATUS_NOT_INSTALLED before coroner_install, CORONER_STATUS_INVALID_ARGUMENT if there is
// no such thread, CORONER_STATUS_SYSTEM if it does not answer; then there is nothing to release. The calling thread's is captured as by
// coroner_backtrace_current, before coroner_install, too. `options` may be NULL.
//
// The caller sees to it that:
// `into` is NULL or points to memory for it. `options` is NULL or points to as many bytes as its `size` says.
coroner_status coroner_backtrace_of_thread(coroner_backtrace *into,
                                           uint64_t thread,
                                           const coroner_capture_options *options);

// Captures the stacks of all threads of this process, one after another, and calls `each` with them when all have been captured.
// CORONER_STATUS_NOT_INSTALLED before coroner_install. `options` may be NULL.
//
// The caller sees to it that:
// `options` is NULL or points to as many bytes as its `size` says. `each` unwinds into nobody, and keeps no pointer.
coroner_status coroner_backtrace_of_all_threads(coroner_each_thread each,
                                                void *context,
                                                const coroner_capture_options *options);

// Releases what a backtrace holds; the memory stays the caller's. Does nothing with NULL.
//
// The caller sees to it that:
// `backtrace` is NULL or was filled in, and has not been released.
void coroner_backtrace_release(coroner_backtrace *backtrace);

// The addresses of a backtrace, and in `count` how many they are. They are valid until it is released. NULL if `backtrace` is.
//
// The caller sees to it that:
// `backtrace` is NULL or was filled in, and has not been released; `count` is NULL or can be written.
const uint64_t *coroner_backtrace_addresses(const coroner_backtrace *backtrace,
                                            size_t *count);

// A number that identical stacks share and others, for all practical purposes, do not; not the same in another run. 0 for NULL.
//
// The caller sees to it that:
// `backtrace` is NULL or was filled in, and has not been released.
uint64_t coroner_backtrace_hash(const coroner_backtrace *backtrace);

// Whether there were more frames than were wanted.
//
// The caller sees to it that:
// `backtrace` is NULL or was filled in, and has not been released.
bool coroner_backtrace_is_truncated(const coroner_backtrace *backtrace);

// Calls `each` with the frames of a backtrace and their names, innermost first. They are found by one pass over the symbols of each
// image, and kept: a stack that was named before costs nearly nothing. Names hold though a library was unloaded since.
//
// The caller sees to it that:
// `backtrace` is NULL or was filled in, and has not been released. `each` unwinds into nobody, and keeps no pointer.
coroner_status coroner_backtrace_names(const coroner_backtrace *backtrace,
                                       coroner_each_frame each,
                                       void *context);

// Writes a backtrace as text, one line a frame, into the `size` bytes at `into`, with a NUL at its end; what does not fit is cut off. With
// `lines` each inlined call has a line, and each line its source file where there is debug information, which is read each time and may take a second;
// without, it is image, function and offset. Returns the number of bytes of the whole text without the NUL, as snprintf does; 0 for NULL.
//
// The caller sees to it that:
// `backtrace` is NULL or was filled in, and has not been released. `into` can be written for `size` bytes; it may be NULL if that is 0.
size_t coroner_backtrace_text(const coroner_backtrace *backtrace,
                              bool lines,
                              char *into,
                              size_t size);

// Says which images are the app's own, beside the program itself: those whose path begins with one of these `count` texts.
//
// The caller sees to it that:
// `prefixes` points to `count` texts that end with a NUL; it may be NULL if that is 0.
coroner_status coroner_set_in_app_images(const char *const *prefixes,
                                         size_t count);

// A configuration with the defaults, for the app with this name or, better, identifier ("com.example.paint"). It names the
// default store, so it should stay the same from version to version. NULL if the name is NULL or not UTF-8.
//
// The caller sees to it that:
// `app` is NULL or a text that ends with a NUL.
coroner_config *coroner_config_new(const char *app);

// Frees a configuration that was not given to coroner_install. NULL is nothing to free.
//
// The caller sees to it that:
// `config` is NULL or from `coroner_config_new`, and is not used afterwards.
void coroner_config_free(coroner_config *config);

// Adds what Android says of the end of an earlier process: it is joined with the report of that run and completes its outcome; a
// crash without a report becomes one. The same may be given at each launch. Nothing is kept of the memory.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `info` points to as many bytes as its `size` says; its description is NULL or a text that ends with a NUL,
// its trace is NULL or has so many bytes.
coroner_status coroner_config_add_exit_info(coroner_config *config,
                                            const coroner_exit_info *info);

// Sets the app's version, such as "2.1.0".
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `version` is a text that ends with a NUL.
coroner_status coroner_config_set_version(coroner_config *config, const char *version);

// Sets where the app runs, such as "production" or "beta".
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `environment` is a text that ends with a NUL.
coroner_status coroner_config_set_environment(coroner_config *config, const char *environment);

// Sets the release, by which servers distinguish versions of an app. Without it: "APP@VERSION".
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `release` is a text that ends with a NUL.
coroner_status coroner_config_set_release(coroner_config *config, const char *release);

// Sets the distribution: one of several builds of a release.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `dist` is a text that ends with a NUL.
coroner_status coroner_config_set_dist(coroner_config *config, const char *dist);

// Sets the directory of the store, which is made at install for its owner only. Without it: ~/.local/state/APP/coroner
// on Linux, ~/Library/Application Support/APP/Coroner on macOS and iOS. On Android it must be set: a directory below
// Context.getFilesDir().
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `directory` is a text that ends with a NUL.
coroner_status coroner_config_set_store_dir(coroner_config *config,
                                            const char *directory);

// Adds a sink that writes each report to a folder, as JSON and as the crash left it. Without any sink set, that is done to
// the folder "reports" in the store.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `folder` is a text that ends with a NUL.
coroner_status coroner_config_add_folder_sink(coroner_config *config,
                                              const char *folder);

#if defined(CORONER_SENTRY)
// Adds a sink that delivers to a project of Sentry, or of a server that speaks its protocol. `dsn` is the project's address with
// the key to it, "https://KEY@HOST/PROJECT". With `require_consent` nothing leaves before coroner_set_consent(true).
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `dsn` is a text that ends with a NUL.
coroner_status coroner_config_add_sentry_sink(coroner_config *config,
                                              const char *dsn,
                                              bool require_consent);
#endif

#if defined(CORONER_OTLP)
// Adds a sink that delivers by OTLP, as OpenTelemetry log records over HTTP. `endpoint` is the Collector's address, such as
// "http://localhost:4318", below which records go to "v1/logs"; NULL for the one that OTEL_EXPORTER_OTLP_ENDPOINT says, and if that is
// not set there is no sink. `headers` go with each request, in the form "name=value,name=value", percent-encoded; NULL for those of
// OTEL_EXPORTER_OTLP_HEADERS. The other variables of OpenTelemetry's exporters hold in any case. With `require_consent` nothing leaves
// before coroner_set_consent(true).
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; the others are NULL or texts that end with a NUL.
coroner_status coroner_config_add_otlp_sink(coroner_config *config,
                                            const char *endpoint,
                                            const char *headers,
                                            bool require_consent);
#endif

// Takes away all sinks, the default one too: reports stay in the store, up to its limits.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_no_sinks(coroner_config *config);

// Sets whether what is surely a secret by its form (the user in a URL, an Authorization header, tokens) is hidden in texts of the
// app before the sinks get a report. Default: yes.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_scrub_secrets(coroner_config *config,
                                                bool scrub);

// Sets a function that hides more: it is called at the next launch for each text that the app or a library wrote (tags, user,
// contexts, extra, breadcrumbs, messages), with the key under which the text stands (a tag's, or empty). If it returns true, the
// text is replaced by `[Filtered]`. It may be called on several threads at once. NULL changes nothing.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `hides` can be called with two texts and `context` on any thread, for the process's life.
coroner_status coroner_config_set_scrub(coroner_config *config,
                                        bool (*hides)(const char *key,
                                                      const char *text,
                                                      void *context),
                                        void *context);

// Sets whether handlers that were installed before are asked first about every fault, and a crash is reported only if they don't take
// it: for code that a runtime compiled ahead of time. Default: no, they are asked first only about what is known to be theirs.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_chain_first(coroner_config *config,
                                              bool chain_first);

// Sets whether a crash signal that another handler has taken after the install is taken back; that handler is called after the
// report. Default: no.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_reinstall_handlers(coroner_config *config,
                                                     bool reinstall);

// Sets whether a crash of a child made by fork is reported, under a run of its own. Default: yes; if not, it is left to
// whoever handled it before.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_report_fork_children(coroner_config *config,
                                                       bool report);

// Sets whether Objective-C exceptions that nobody catches are reported with name, reason and the stack of the throw (macOS, iOS;
// nothing elsewhere). Default: yes.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_objc_exceptions(coroner_config *config,
                                                  bool report);

// Sets whether exceptions that AppKit catches and only logs are reported, as ones that the process survives (macOS; nothing
// elsewhere). It replaces `-[NSApplication reportException:]` by a method that reports and goes on in it. Default: no.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_appkit_exceptions(coroner_config *config,
                                                    bool report);

// Sets whether Objective-C objects that are deallocated are remembered, by address and class, so that a report says of what class an object was
// that the crashed thread used after that, and which message was sent to it (macOS, iOS; nothing elsewhere). No object is kept. It replaces
// `-dealloc` of `NSObject`, `NSProxy` and `NSException`, and takes 576 KiB of memory. Default: no.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_zombies(coroner_config *config,
                                          bool remember);

// Sets whether a thread is started whose stack says the run's id, so that what MetricKit says of this process's death is known to be of this run (macOS,
// iOS; nothing elsewhere). The thread waits for ever and costs some tens of KiB of memory. Default: no.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_run_id_thread(coroner_config *config,
                                                bool start);

// Sets whether the last 60 KiB that the process wrote to stderr and to stdout go with its reports, as attachments `stderr` and `stdout`, where those
// are regular files when Coroner is installed: a file is read again at the crash, and one that the process
// appends to from where it ended at install. Of a terminal, a pipe or a socket nothing is kept. They may hold what users typed. Default: no.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_keep_output(coroner_config *config,
                                              bool keep);

// Sets whether the used parts of all threads' stacks are in a report, so that a debugger or `minidump-stackwalk` can walk a minidump made
// of it as far as the report's own frames go: 64 KiB of the crashed thread, 16 KiB of each other, 448 KiB of the others together. They may
// hold what users typed. The reserved file is larger by 576 KiB. In the place of `coroner_config_set_stack_memory`. Default: no.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_stack_memory_all(coroner_config *config,
                                                   bool all);

// Sets whether the dying process looks up names for the report's addresses in its own images, when everything else is on
// disk: they are used where no symbol file is found at the next launch or at a server. It takes milliseconds, and longer in a
// large program. Default: only on Apple's systems, whose own libraries have their symbols nowhere else.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_symbol_names(coroner_config *config,
                                               bool names);

// Sets after how many milliseconds a watched thread that does not answer hangs, and is reported; 0 for never, which is the default.
// Threads are watched that call coroner_hang_beat, and on Apple's systems the main thread, where it works through its run loop or
// the main queue.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_hang_threshold(coroner_config *config,
                                                 uint32_t milliseconds);

// Sets how many reports of handled exceptions and of panics that the process survives it writes in an hour, as many of them at once; and
// as many of hangs. What is beyond is counted, and the next report says how many. Default: 16.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_reports_per_hour(coroner_config *config,
                                                   uint32_t reports);

// Sets how many bytes of the crashed thread's stack are in a report. With them come 256 to 512 bytes around each address that is in
// one of its registers. They may hold what users typed. Default: 2048; 0 for
// none.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_stack_memory(coroner_config *config,
                                               uint32_t bytes);

// Sets how long writing a report may take before the process is ended with what there is, in milliseconds. Default: 5000.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_deadline(coroner_config *config,
                                           uint32_t milliseconds);

// Sets how much the store keeps of what can't be delivered: so many reports, as many runs without one, so many days, so many bytes.
// Default: 100, 90, 64 MiB.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_limits(coroner_config *config,
                                         uint32_t reports,
                                         uint32_t days,
                                         uint64_t bytes);

// Sets whether all threads are in a report, or only the crashed one. Default: all.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_all_threads(coroner_config *config, bool all);

// Sets which threads get an alternate signal stack: one of coroner_alternate_stacks. Default: all.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`.
coroner_status coroner_config_set_alternate_stacks(coroner_config *config, int32_t stacks);

#if (defined(CORONER_SENTRY) || defined(CORONER_OTLP))
// Says whether the user agrees that reports are sent, to Sentry and by OTLP. From true on, what waits is sent; with false all that
// waits is removed and nothing more is kept. It is remembered over launches.
coroner_status coroner_set_consent(bool given);
#endif

// Reports an exception that was handled: a report of all threads, as of a crash, with the calling thread's stack. The app goes
// on, and delivers the report within seconds. CORONER_STATUS_FULL if there are more in an hour than
// coroner_config_set_reports_per_hour allows, or 16 wait; those are counted, and the next report says how many. `language` is one of coroner_exception_language up to Swift; `message` may be
// NULL.
//
// The caller sees to it that:
// `kind` (the exception's type) is a text that ends with a NUL, `message` one or NULL.
coroner_status coroner_report_exception(int32_t language,
                                        const char *kind,
                                        const char *message);

// Reports an error of Objective-C or Swift that was handled, with the errors below it as its causes: the first of `count` is the one that was handled, each other
// one is the cause of the one before (`NSUnderlyingErrorKey`). At most eight are reported. As coroner_report_exception otherwise. `coroner_apple.h` has a function
// that makes them of an `NSError`.
//
// The caller sees to it that:
// `errors` points to `count` errors, whose domains are texts that end with a NUL, and whose descriptions are, or NULL.
coroner_status coroner_report_coded_error(int32_t language,
                                          const coroner_coded_error *errors,
                                          size_t count);

// Reports an exception of JavaScript, C#, Dart, Lua, Python, Ruby or PHP with the `count` frames that its runtime has, innermost first, and the native stack of
// the calling thread. With `all_threads` the other threads stand still for some milliseconds, and their stacks are in the report.
//
// With `fatal` the process ends of it: the caller has it ended afterwards. Otherwise the app goes on as after coroner_report_exception, with
// the same limits. CORONER_STATUS_FULL where there is no report. `message` may be NULL.
//
// The caller sees to it that:
// `kind` (the exception's type) is a text that ends with a NUL, `message` one or NULL. `frames` points to `count` frames, whose texts
// end with a NUL or are NULL.
coroner_status coroner_report_foreign_exception(int32_t language,
                                                const char *kind,
                                                const char *message,
                                                const coroner_exception_frame *frames,
                                                size_t count,
                                                bool all_threads,
                                                bool fatal);

// The calling thread is alive, and at work: if neither this nor coroner_hang_idle comes again within the time of
// coroner_config_set_hang_threshold, it hangs. The thread is watched from its first call on, which
// takes a lock; all others cost a store and never wait.
void coroner_hang_beat(void);

// The calling thread is alive, and is going to wait for work: it is not expected to show anything until its next
// coroner_hang_beat.
void coroner_hang_idle(void);

// Adds a sink of the app's own: `deliver` is called for each report, one at a time, on a thread of Coroner's. The store remembers under
// `name` what it has taken: the same at every launch, and no other sink's.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `name` is a text that ends with a NUL; `deliver` can be called with `context` on any thread, for
// the process's life.
coroner_status coroner_config_add_sink(coroner_config *config,
                                       const char *name,
                                       coroner_sink_deliver deliver,
                                       void *context);

// Sets a function that sees each report before the sinks, as JSON, and may keep it from them: a report for which it returns false is
// removed. It is called at a launch, in coroner_install or on a thread of Coroner's, and may be called twice for one report. NULL changes nothing.
// CORONER_STATUS_SYSTEM if the library was built without the feature `json`, as the lean one is.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `keep` can be called with `context` on any thread, for the process's life.
coroner_status coroner_config_set_before_deliver(coroner_config *config,
                                                 coroner_before_deliver keep,
                                                 void *context);

// Sets a function that is called, on a thread of Coroner's, when the last run crashed and the app has not been notified yet. NULL changes nothing.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`; `crashed` can be called with `context` on any thread, for the process's life.
coroner_status coroner_config_set_on_crashed_last_run(coroner_config *config,
                                                      coroner_crashed_last_run crashed,
                                                      void *context);

// Installs Coroner: from here on a crash of this process leaves a report in the store. Call it once, as early in main as can
// be. The configuration is used up, and freed, however it goes.
//
// It waits for no thread and no network, and starts a thread only if there is something of an earlier run to deliver.
//
// The caller sees to it that:
// `config` is from `coroner_config_new`, and is not used afterwards.
coroner_status coroner_install(coroner_config *config);

// Gives the signals back to who had them before, and ends this run. Coroner can be installed again afterwards.
coroner_status coroner_uninstall(void);

// Gives this process, a child made by fork that goes on as a process of its own (a daemon, a worker of a pre-forking server), a run of
// its own. Call it in the child after fork or daemon, before it starts threads. Does nothing in a process that installed Coroner itself.
coroner_status coroner_after_fork(void);

// Gives the calling thread an alternate signal stack, so that its stack overflow can be reported: for threads that did not
// get one by themselves.
coroner_status coroner_attach_current_thread(void);

// Leaves the next signal with this number, of the calling thread, to the handlers that were there before Coroner: for a
// managed runtime that is about to raise it on purpose.
coroner_status coroner_ignore_next_signal(int32_t signal);

// Notes that the app has ended well, for apps that then leave otherwise than by exit or the end of main.
coroner_status coroner_mark_clean_exit(void);

// Delivers what is in the store, and waits for it, at most that many milliseconds. CORONER_STATUS_TIMED_OUT if something is
// left.
coroner_status coroner_flush(uint32_t timeout_ms);

// Takes what MetricKit says of the app: the JSON of an `MXDiagnosticPayload` (`JSONRepresentation`), and starts delivery. Each crash is put to the run of
// its process, and completes that one's report or is one; each hang, slow launch, and excess of processor time or disk writes is a report; the same may be given at each launch. `coroner_apple.h` has a function that takes payloads as the app gets
// them. Nothing is kept of the memory.
//
// CORONER_STATUS_INVALID_ARGUMENT if it is no such JSON; CORONER_STATUS_SYSTEM if the store can't be written, or the library was built without the feature
// `system-reports`.
//
// The caller sees to it that:
// `json` points to `length` bytes.
coroner_status coroner_add_metric_kit_payload(const uint8_t *json,
                                              size_t length);

// Fills in how the last run ended, if `last_run->size` is set.
//
// The caller sees to it that:
// `last_run` is NULL or points to as many bytes as its `size` says.
coroner_status coroner_last_run(coroner_last_run_info *last_run);

// Sets a tag: a short text by which reports can be searched. It replaces one with the same key.
//
// The caller sees to it that:
// Both are texts that end with a NUL.
coroner_status coroner_set_tag(const char *key, const char *value);

// Changes several things at once: calls `change(context)`, and what that sets and removes on this thread (tags, user, contexts, extra data,
// fingerprint, attachments, flags, release, environment) counts when it has returned. A crash in the middle has none of it in its report. It
// waits for another thread that is just doing the same. `change` must return: it may not leave by an exception or `longjmp`.
//
// The caller sees to it that:
// `change` can be called with `context`.
coroner_status coroner_configure_scope(void (*change)(void *context),
                                       void *context);

// Removes a tag. It is no error if there is none.
//
// The caller sees to it that:
// `key` is a text that ends with a NUL.
coroner_status coroner_remove_tag(const char *key);

// Sets the id of the user who is using the app, as the app knows them; NULL for nobody.
//
// The caller sees to it that:
// `id` is NULL or a text that ends with a NUL.
coroner_status coroner_set_user_id(const char *id);

// Sets who is using the app: the id as the app knows them, the name by which they know themselves, and their address. `name`
// and `email` may be NULL.
//
// The caller sees to it that:
// `id` is a text that ends with a NUL, the others are such texts or NULL.
coroner_status coroner_set_user(const char *id,
                                const char *name,
                                const char *email);

// Sets a context: something that belongs together, as a JSON object such as {"pages": 3, "of": {"kind": "letter"}}. It
// replaces one with the same name.
//
// The caller sees to it that:
// Both are texts that end with a NUL.
coroner_status coroner_set_context(const char *name,
                                   const char *json);

// Removes a context. It is no error if there is none.
//
// The caller sees to it that:
// `name` is a text that ends with a NUL.
coroner_status coroner_remove_context(const char *name);

// Sets a value that is only shown, as JSON. It replaces one with the same key.
//
// The caller sees to it that:
// Both are texts that end with a NUL.
coroner_status coroner_set_extra(const char *key, const char *json);

// Removes a value that is only shown. It is no error if there is none.
//
// The caller sees to it that:
// `key` is a text that ends with a NUL.
coroner_status coroner_remove_extra(const char *key);

// Sets the texts by which a server puts reports together, instead of its own rules; a count of 0 takes them away.
//
// The caller sees to it that:
// `parts` points to `count` texts that end with a NUL; with a count of 0 it may be NULL.
coroner_status coroner_set_fingerprint(const char *const *parts,
                                       size_t count);

// Sets how grave the app takes its events to be, where that is not the crash's own level. `level` is one of coroner_level.
coroner_status coroner_set_level(int32_t level);

// Sets which trace the app is at work on, so that a report is linked to it: 32 and 16 hexadecimal digits, as in W3C's traceparent. NULL for
// both: none any more.
//
// The caller sees to it that:
// Both are texts that end with a NUL, or both NULL.
coroner_status coroner_set_trace(const char *trace_id,
                                 const char *span_id);

// Notes what a feature flag was evaluated to. The last 100 are kept, in the order of their last evaluation.
//
// The caller sees to it that:
// `flag` is a text that ends with a NUL.
coroner_status coroner_set_flag(const char *flag,
                                bool result);

// Says whether the app is in front, where it is of a kind that ever is: a report says so, and whether a hang was one that the user saw.
coroner_status coroner_set_foreground(bool is_foreground);

// Changes the release of this run, where the app learns it only after install.
//
// The caller sees to it that:
// `release` is a text that ends with a NUL.
coroner_status coroner_set_release(const char *release);

// Changes the environment of this run, such as "production".
//
// The caller sees to it that:
// `environment` is a text that ends with a NUL.
coroner_status coroner_set_environment(const char *environment);

// Declares a file that goes with this run's reports, under `name`. It is read when a report is sent, as it is then: at the next launch, after
// a crash. `content_type` may be NULL; a `path` of NULL: it does not go with them any more.
//
// The caller sees to it that:
// `name` is a text that ends with a NUL, the others are such texts or NULL.
coroner_status coroner_add_attachment(const char *name,
                                      const char *path,
                                      const char *content_type);

// Keeps `size` bytes in this run's directory, to go with its reports under `name`: a screenshot or a view tree of the app's last moment. It
// replaces what has the same name. At most 20 MiB; the name has letters, digits, `.`, `-` and `_`. `content_type` may be NULL.
//
// The caller sees to it that:
// `name` is a text that ends with a NUL, `content_type` one or NULL, and `bytes` points to so many bytes.
coroner_status coroner_keep_attachment(const char *name,
                                       const uint8_t *bytes,
                                       size_t size,
                                       const char *content_type);

// Delivers what a user says, most often of the last crash: `event_id` are the 32 hexadecimal digits of its event, or NULL. `name` and `email`
// may be NULL. CORONER_STATUS_FULL if no sink took it.
//
// The caller sees to it that:
// `message` is a text that ends with a NUL, the others are such texts or NULL.
coroner_status coroner_feedback(const char *event_id,
                                const char *message,
                                const char *name,
                                const char *email);

// Counts an error that the app got over, for release health: the run is then one with errors, if it doesn't crash.
coroner_status coroner_count_error(void);

// Leaves a breadcrumb: something that happened, such as "opened the document". The last ones before a crash are in its
// report. `category` may be NULL. `level` is one of coroner_level.
//
// The caller sees to it that:
// `message` is a text that ends with a NUL, `category` one or NULL.
coroner_status coroner_add_breadcrumb(const char *category,
                                      const char *message,
                                      int32_t level);

// The reason, in words, why the last call on this thread that failed did. Never NULL; empty if none failed. It is valid
// until the next call on this thread fails.
const char *coroner_last_error(void);

// The version of this library, such as "0.1.0".
const char *coroner_version(void);

// Tells every walk of this process, of crashes and of live backtraces, how to find the caller of a frame whose program counter is in
// the `size` bytes at `start`: code of a JIT, of an interpreter, of a trampoline. It comes before unwind data, frame pointers and
// all else; where ranges overlap the shortest counts. The rule holds at every instruction of the range.
//
// It works before coroner_install and after coroner_uninstall as well. At most 512 ranges are registered at a time, beyond which this
// answers CORONER_STATUS_FULL: a JIT registers each piece of memory that it maps, and not each function.
//
// `registration` gets a number to take the range back with, before the code goes; NULL if it never will be.
//
// The caller sees to it that:
// `rule` points to as many bytes as its `size` says, its `saved` to `saved_count` elements; `registration` is NULL or can be written.
coroner_status coroner_register_unwind_range(const void *start,
                                             size_t size,
                                             const coroner_unwind_rule *rule,
                                             uint64_t *registration);

// Takes a range back that coroner_register_unwind_range registered under this number. CORONER_STATUS_INVALID_ARGUMENT where none is.
coroner_status coroner_unregister_unwind_range(uint64_t registration);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CORONER_H */
