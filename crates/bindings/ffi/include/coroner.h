/**
 * @file
 * Coroner: a crash reporter for apps in C, C++, Objective-C and Swift.
 *
 *     coroner_config *config = coroner_config_new("com.example.paint");
 *     coroner_config_set_version(config, "2.1.0");
 *     if (coroner_install(config) != CORONER_STATUS_OK)
 *         fprintf(stderr, "crashes will not be reported: %s\n", coroner_last_error());
 *
 * Link with libcoroner_ffi, static or shared. All functions may be called from any thread, but not
 * from a signal handler.
 *
 * General rules, unless noted:
 *  - `config` must be a live object from coroner_config_new: not freed and not passed to
 *    coroner_install.
 *  - Strings must be NUL-terminated UTF-8. Coroner copies them; the caller keeps ownership.
 *  - A struct with a `size` field must have that many bytes.
 *  - `backtrace` must be NULL, or filled in and not released. `options` may be NULL.
 *  - A callback must not unwind. If it isn't called before the function returns, it must be
 *    callable with its `context` on any thread until the process ends.
 *
 * Generated from crates/bindings/ffi by `cargo xtask header`; don't edit it.
 */

#ifndef CORONER_H
#define CORONER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/// The version of this header, to compare with the result of coroner_version.
#define CORONER_VERSION_MAJOR 0

/// See CORONER_VERSION_MAJOR.
#define CORONER_VERSION_MINOR 1

/// See CORONER_VERSION_MAJOR.
#define CORONER_VERSION_PATCH 0

/// The result of a call.
typedef enum {
    /// Success.
    CORONER_STATUS_OK = 0,
    /// An argument is out of range, not UTF-8, or NULL where it must not be.
    CORONER_STATUS_INVALID_ARGUMENT = 1,
    /// Coroner is already installed in this process.
    CORONER_STATUS_ALREADY_INSTALLED = 2,
    /// Coroner is not installed in this process.
    CORONER_STATUS_NOT_INSTALLED = 3,
    /// An operating system call failed.
    CORONER_STATUS_SYSTEM = 4,
    /// A limit is reached, such as the run state's size.
    CORONER_STATUS_FULL = 5,
    /// Timed out.
    CORONER_STATUS_TIMED_OUT = 6,
    /// A bug in Coroner: a panic was caught before it could reach the app.
    CORONER_STATUS_INTERNAL = 7,
} coroner_status;

/// A run's outcome.
typedef enum {
    /// No earlier run.
    CORONER_OUTCOME_FIRST_LAUNCH = 0,
    /// The app exited.
    CORONER_OUTCOME_CLEAN_EXIT = 1,
    /// The app was terminated by SIGTERM.
    CORONER_OUTCOME_TERMINATED = 2,
    /// The app crashed.
    CORONER_OUTCOME_CRASHED = 3,
    /// Coroner was uninstalled during the run.
    CORONER_OUTCOME_UNINSTALLED = 4,
    /// The app ended without a trace: killed, out of memory, or a power failure.
    CORONER_OUTCOME_UNKNOWN = 5,
    /// The app was not responding when it was terminated.
    CORONER_OUTCOME_HUNG = 6,
    /// The system killed the app to free memory.
    CORONER_OUTCOME_OUT_OF_MEMORY = 7,
    /// The user quit or force-stopped the app.
    CORONER_OUTCOME_ENDED_BY_USER = 8,
    /// The system terminated the app for another reason.
    CORONER_OUTCOME_ENDED_BY_SYSTEM = 9,
    /// A signal that isn't a crash terminated the app: Ctrl-C, a hangup, an alarm.
    CORONER_OUTCOME_ENDED_BY_SIGNAL = 10,
    /// The machine rebooted or lost power.
    CORONER_OUTCOME_SYSTEM_RESTART = 11,
    /// The kernel killed the app at its CPU time limit.
    CORONER_OUTCOME_CPU_LIMIT = 12,
    /// The app ended while a debugger was attached.
    CORONER_OUTCOME_DEBUGGED = 13,
} coroner_outcome;

/// Threads that get an alternate signal stack.
///
/// Without one, a thread's stack overflow can't be reported.
typedef enum {
    /// All threads.
    CORONER_ALTERNATE_STACKS_EVERYWHERE = 0,
    /// The installing thread, and threads that call coroner_attach_current_thread.
    CORONER_ALTERNATE_STACKS_ATTACHED = 1,
    /// No thread: the app provides the stacks.
    CORONER_ALTERNATE_STACKS_LEAVE = 2,
} coroner_alternate_stacks;

/// The result of an app's sink, returned by its coroner_sink_deliver function.
typedef enum {
    /// The sink accepted the report.
    CORONER_DELIVERED_TAKEN = 0,
    /// The sink rejected the report; it is not offered again.
    CORONER_DELIVERED_REJECTED = 1,
    /// The sink can't accept the report now.
    ///
    /// It is offered again at a launch or in coroner_flush, after a minute at the earliest.
    CORONER_DELIVERED_RETRY = 2,
} coroner_delivered;

/// The language of an exception.
typedef enum {
    /// C++.
    CORONER_EXCEPTION_LANGUAGE_CPP = 1,
    /// Objective-C.
    CORONER_EXCEPTION_LANGUAGE_OBJ_C = 2,
    /// Rust.
    CORONER_EXCEPTION_LANGUAGE_RUST = 3,
    /// Swift.
    CORONER_EXCEPTION_LANGUAGE_SWIFT = 4,
    /// JavaScript. This and the following are for coroner_report_foreign_exception.
    CORONER_EXCEPTION_LANGUAGE_JAVASCRIPT = 6,
    /// C# and other .NET languages.
    CORONER_EXCEPTION_LANGUAGE_CSHARP = 7,
    /// Dart.
    CORONER_EXCEPTION_LANGUAGE_DART = 8,
    /// Lua.
    CORONER_EXCEPTION_LANGUAGE_LUA = 9,
    /// Python.
    CORONER_EXCEPTION_LANGUAGE_PYTHON = 10,
    /// Ruby.
    CORONER_EXCEPTION_LANGUAGE_RUBY = 11,
    /// PHP.
    CORONER_EXCEPTION_LANGUAGE_PHP = 12,
} coroner_exception_language;

/// The severity of a breadcrumb or of the app's events.
typedef enum {
    /// Details that only help a developer who debugs the app.
    CORONER_LEVEL_DEBUG = 1,
    /// Normal operation, such as a page that was opened.
    CORONER_LEVEL_INFO = 2,
    /// Something unexpected that did not stop the operation.
    CORONER_LEVEL_WARNING = 3,
    /// An operation failed, and the app continues.
    CORONER_LEVEL_ERROR = 4,
    /// The app can't continue.
    CORONER_LEVEL_FATAL = 5,
} coroner_level;

/// The app's choices for coroner_install.
///
/// Created by coroner_config_new; passed to coroner_install or freed by coroner_config_free. Not
/// thread-safe: use it from one thread at a time.
typedef struct coroner_config coroner_config;

/// Called when the process crashes, after the rest of the report is written.
///
/// Writes at most `room` bytes to `into` and returns the number of bytes written.
///
/// The callback must be async-signal-safe: it must not allocate, take a lock, wait, or leave by
/// longjmp or an exception.
typedef size_t (*coroner_crash_callback)(void *context, uint8_t *into, size_t room);

/// The addresses of a thread's stack at one moment, innermost first.
///
/// The caller provides the memory, on its stack or elsewhere, and need not initialize it. The
/// functions that fill it in don't allocate. Call coroner_backtrace_release exactly once for each
/// backtrace that was filled in.
typedef struct {
    /// Private to Coroner; larger than currently needed, to leave room for growth.
    uint64_t reserved[144];
} coroner_backtrace;

/// Capture options. Set `size`; zero in any other field selects its default.
typedef struct {
    /// `sizeof(coroner_capture_options)`. Fields beyond it are taken as 0.
    size_t size;
    /// Maximum number of frames, at most 128; 0 means 128.
    uint32_t depth;
    /// Number of innermost frames to leave out.
    uint32_t skip;
    /// Keep only frames in the app's own images: the program and coroner_set_in_app_images.
    bool in_app_only;
    /// At a Swift async function, continue to its executor, not to the functions that await it.
    bool without_swift_async;
    /// Stop another thread with ptrace, so that none of its system calls fails with EINTR.
    ///
    /// A helper process does the tracing. Slower than the default. Linux only: on other systems no
    /// call is interrupted anyway.
    bool by_ptrace;
} coroner_capture_options;

/// Called for each thread. `backtrace` is NULL if the thread did not respond.
///
/// Coroner releases the backtrace when the callback returns.
typedef void (*coroner_each_thread)(void *context,
                                    uint64_t thread,
                                    const coroner_backtrace *backtrace);

/// A frame, as passed to the callback of coroner_backtrace_names.
typedef struct {
    /// The frame's address, usually a return address.
    ///
    /// It is an instruction's own address in another thread's innermost frame and in frames that a
    /// signal interrupted.
    uint64_t address;
    /// The file name of the image that contains the address; NULL if none does.
    const char *image;
    /// The address relative to the image's first byte.
    uint64_t image_offset;
    /// The demangled function name; NULL if unknown.
    const char *function;
    /// The address relative to the function's first byte.
    uint64_t function_offset;
    /// Whether the frame is the app's own code: the app's image, and not a runtime's function.
    bool in_app;
} coroner_named_frame;

/// Called for each frame, innermost first.
///
/// The frame's strings are valid until the callback returns.
typedef void (*coroner_each_frame)(void *context, const coroner_named_frame *frame);

/// Android's ApplicationExitInfo for an earlier process of the app.
typedef struct {
    /// `sizeof(coroner_exit_info)`. Fields beyond it are taken as 0.
    size_t size;
    /// getPid.
    uint32_t pid;
    /// getReason.
    int32_t reason;
    /// getStatus.
    int32_t status;
    /// getImportance.
    int32_t importance;
    /// getTimestamp: milliseconds since 1970.
    uint64_t timestamp_ms;
    /// getRss, in kilobytes.
    uint64_t rss_kb;
    /// getPss, in kilobytes.
    uint64_t pss_kb;
    /// getDescription, or NULL.
    const char *description;
    /// All bytes of getTraceInputStream, or NULL.
    const uint8_t *trace;
    /// The number of bytes at `trace`.
    size_t trace_length;
} coroner_exit_info;

/// An error with a domain and a code: an `NSError`, or a Swift error bridged to one.
typedef struct {
    /// The domain, such as `NSCocoaErrorDomain`, or a Swift type. It becomes the exception's type.
    const char *domain;
    /// The code in that domain.
    int64_t code;
    /// The error's description, or NULL.
    const char *description;
} coroner_coded_error;

/// A frame of an exception in a language whose runtime walks its own stack.
typedef struct {
    /// The function, or NULL.
    const char *function;
    /// The function's source file, or NULL.
    const char *file;
    /// The line in the file, from 1; 0 if unknown.
    uint32_t line;
    /// The column, from 1; 0 if unknown.
    uint32_t column;
    /// Whether the frame is the app's own code rather than the runtime's or a library's.
    bool in_app;
} coroner_exception_frame;

/// A report for an app's sink. All its pointers are valid until the function returns.
typedef struct {
    /// The event id: 32 hexadecimal digits.
    ///
    /// If the same report is delivered twice, the id is the same.
    const char *event_id;
    /// The report as JSON (docs/report-format.md).
    ///
    /// NULL in a library built without the feature `json`, such as the lean one.
    const char *json;
    /// The report as a `.coroner` file, as a folder sink stores it. `coroner show` reads it.
    ///
    /// Contains what the dying process wrote, including tags, user and breadcrumbs. Secrets in its
    /// strings are not hidden.
    const uint8_t *raw;
    /// The number of bytes at `raw`.
    size_t raw_length;
} coroner_given_report;

/// Delivers a report. It may block.
typedef coroner_delivered (*coroner_sink_deliver)(void *context, const coroner_given_report *report);

/// Receives a report as JSON; returns whether to pass it to the sinks.
typedef bool (*coroner_before_deliver)(void *context, const char *json);

/// Called with the crash's event id, 32 hexadecimal digits; empty if the crash left no report.
typedef void (*coroner_crashed_last_run)(void *context, const char *event_id);

/// The last run's outcome, filled in by coroner_last_run.
typedef struct {
    /// `sizeof(coroner_last_run_info)`, set by the caller. Fields beyond it are not filled in.
    size_t size;
    /// The outcome.
    coroner_outcome outcome;
    /// The event id of the run's report as 32 hexadecimal digits and a NUL; empty if there is no
    /// report.
    char event_id[33];
    /// Milliseconds from install to the crash, or to the hang's report; 0 for other outcomes.
    uint64_t ran_for_ms;
} coroner_last_run_info;

/// A saved register; see coroner_unwind_rule.
typedef struct {
    /// The register's DWARF number.
    uint8_t number;
    /// Offset in bytes from the canonical frame address, a multiple of 8, usually negative.
    int32_t offset;
} coroner_saved_register;

/// A rule to find a frame's caller, the same at every instruction of a range.
///
/// The canonical frame address is the stack pointer's value before the call; the caller's registers
/// were saved at offsets from it.
///
/// Registers have their DWARF numbers. x86_64: 7 is rsp, 6 rbp, 16 the return address; 3 (rbx) and
/// 12 to 15 (r12 to r15) can also be saved. arm64: 31 is sp, 29 x29 (the frame pointer), 30 x30
/// (the return address); 19 to 28 can also be saved.
///
/// Example: ART's generic JNI trampoline has a frame record 0xd0 bytes above the stack pointer. On
/// x86_64 its canonical frame address is 7 + 0xe0, with {6, -16} and {16, -8} saved; on arm64 it is
/// 31 + 0xe0, with {29, -16} and {30, -8}.
typedef struct {
    /// `sizeof(coroner_unwind_rule)`. Fields beyond it are taken as 0.
    size_t size;
    /// The register whose value plus `cfa_offset` is the canonical frame address.
    uint8_t cfa_register;
    /// Bytes to add to the value of `cfa_register`.
    int32_t cfa_offset;
    /// The saved registers.
    ///
    /// If 16 is not listed on x86_64, the return address is 8 bytes below the canonical frame
    /// address; if 30 is not listed on arm64, it is in x30. Callee-saved registers that are not
    /// listed still have the caller's values.
    const coroner_saved_register *saved;
    /// The number of saved registers; if it is 0, `saved` may be NULL.
    size_t saved_count;
    /// Whether stacks end in this range: a thread's or coroutine's first function.
    ///
    /// If set, the fields above are ignored.
    bool outermost;
} coroner_unwind_rule;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Registers `size` bytes of memory at `start` as an attachment to each report of this process.
///
/// Use it for a ring buffer of log lines or a game's state. The memory is read with guarded loads
/// when the process crashes, at most the first 60 KiB. Replaces memory registered under the same
/// name. At most 16 can be registered, before or after coroner_install.
///
/// @pre The general rules apply. `start` need not stay valid: unmapped memory is left out.
coroner_status coroner_register_memory(const char *name, const void *start, size_t size);

/// Unregisters the memory under this name. Does nothing if there is none.
coroner_status coroner_unregister_memory(const char *name);

/// Sets the function to call as `callback(context, into, room)` when this process crashes.
///
/// Replaces the previous callback; NULL removes it. The bytes that the callback writes, at most 60
/// KiB, become the report's attachment `crash_callback`. A fault in the callback, or the report's
/// deadline, ends only the callback. It isn't called for non-fatal reports, hangs, or children
/// created by fork.
///
/// @pre `callback` must be async-signal-safe; `context` must stay valid while it is set.
coroner_status coroner_set_crash_callback(coroner_crash_callback callback, void *context);

/// Returns the calling thread's id: gettid on Linux, pthread_threadid_np on Apple systems.
uint64_t coroner_thread_id(void);

/// Captures the calling thread's stack, starting at the caller of this function.
///
/// Captures addresses only: it doesn't allocate or lock, and takes some nanoseconds per frame. Can
/// be called before coroner_install.
///
/// @pre `into` must be NULL or point to memory for a coroner_backtrace.
coroner_status coroner_backtrace_current(coroner_backtrace *into,
                                         const coroner_capture_options *options);

/// Captures the stack of a thread of this process.
///
/// `thread` is the id that coroner_thread_id returns on that thread.
///
/// Another thread is stopped for the microseconds that the capture takes. The calling thread can be
/// captured before coroner_install, too.
///
/// Returns CORONER_STATUS_NOT_INSTALLED before coroner_install, CORONER_STATUS_INVALID_ARGUMENT if
/// there is no such thread, CORONER_STATUS_SYSTEM if it does not respond. On failure there is
/// nothing to release.
///
/// @pre `into` must be NULL or point to memory for a coroner_backtrace.
coroner_status coroner_backtrace_of_thread(coroner_backtrace *into,
                                           uint64_t thread,
                                           const coroner_capture_options *options);

/// Captures the stacks of all threads of this process, then calls `each` for each thread.
///
/// The threads are captured one after another. Returns CORONER_STATUS_NOT_INSTALLED before
/// coroner_install.
///
/// @pre The general rules apply. `each` must not keep a pointer.
coroner_status coroner_backtrace_of_all_threads(coroner_each_thread each,
                                                void *context,
                                                const coroner_capture_options *options);

/// Releases a backtrace's resources, but not the memory that the caller provided.
///
/// Does nothing if `backtrace` is NULL.
void coroner_backtrace_release(coroner_backtrace *backtrace);

/// Returns a backtrace's addresses and stores their number in `*count`; NULL for a NULL backtrace.
///
/// The addresses are valid until the backtrace is released.
///
/// @pre `count` must be NULL or writable.
const uint64_t *coroner_backtrace_addresses(const coroner_backtrace *backtrace, size_t *count);

/// Returns a hash of the stack; 0 if `backtrace` is NULL.
///
/// Identical stacks have the same hash; different stacks almost certainly have different hashes.
/// Hashes differ from run to run.
uint64_t coroner_backtrace_hash(const coroner_backtrace *backtrace);

/// Returns true if the stack has more frames than the requested maximum.
bool coroner_backtrace_is_truncated(const coroner_backtrace *backtrace);

/// Calls `each` for a backtrace's frames, with their names, innermost first.
///
/// Names are found in one pass over each image's symbols and cached, so that naming the same stack
/// again costs almost nothing. Names stay correct even if a library was unloaded after the capture.
///
/// @pre The general rules apply. `each` must not keep a pointer.
coroner_status coroner_backtrace_names(const coroner_backtrace *backtrace,
                                       coroner_each_frame each,
                                       void *context);

/// Writes a backtrace as text to the `size` bytes at `into`; returns the text's length.
///
/// The text has one line per frame, with image, function and offset, is NUL-terminated and
/// truncated to fit. With `lines`, inlined calls have lines of their own, and a line includes the
/// source position if debug information is available. Debug information is read on each such call,
/// which may take a second.
///
/// Like snprintf, it returns the number of bytes of the whole text without the NUL; 0 if
/// `backtrace` is NULL.
///
/// @pre `into` must be writable for `size` bytes; it may be NULL if `size` is 0.
size_t coroner_backtrace_text(const coroner_backtrace *backtrace,
                              bool lines,
                              char *into,
                              size_t size);

/// Sets the path prefixes of the app's own images, besides the program.
///
/// @pre `prefixes` must point to `count` strings; it may be NULL if `count` is 0.
coroner_status coroner_set_in_app_images(const char *const *prefixes, size_t count);

/// Creates a configuration with the defaults.
///
/// `app` is the app's identifier, such as "com.example.paint". It names the default store, so don't
/// change it between versions. Returns NULL if `app` is NULL or not UTF-8.
coroner_config *coroner_config_new(const char *app);

/// Frees a configuration that was not passed to coroner_install. Does nothing if `config` is NULL.
///
/// @pre `config` must not be used afterwards.
void coroner_config_free(coroner_config *config);

/// Adds Android's exit information about an earlier process.
///
/// It is merged into the report of that process's run and completes the run's outcome; for a crash
/// without a report it becomes the report. Adding the same information at each launch is harmless.
/// The data is copied.
///
/// @pre The description must be NULL or a string, the trace NULL or `trace_length` bytes.
coroner_status coroner_config_add_exit_info(coroner_config *config, const coroner_exit_info *info);

/// Sets the app's version, such as "2.1.0".
coroner_status coroner_config_set_version(coroner_config *config, const char *version);

/// Sets where the app runs, such as "production" or "beta".
coroner_status coroner_config_set_environment(coroner_config *config, const char *environment);

/// Sets the release, by which servers distinguish an app's versions. Default: "APP@VERSION".
coroner_status coroner_config_set_release(coroner_config *config, const char *release);

/// Sets the distribution: one of several builds of a release.
coroner_status coroner_config_set_dist(coroner_config *config, const char *dist);

/// Sets the store's directory, which install creates with access for the owner only.
///
/// Default: ~/.local/state/APP/coroner on Linux, ~/Library/Application Support/APP/Coroner on macOS
/// and iOS. On Android it must be set: use a directory below Context.getFilesDir().
coroner_status coroner_config_set_store_dir(coroner_config *config, const char *directory);

/// Adds a sink that writes each report to a folder, as JSON and in its original form.
///
/// Without any sink, reports are written to the folder "reports" in the store.
coroner_status coroner_config_add_folder_sink(coroner_config *config, const char *folder);

#if defined(CORONER_SENTRY)
/// Adds a sink that delivers to a Sentry project, or to a server that implements Sentry's protocol.
///
/// `dsn` is the project's address with its key, "https://KEY@HOST/PROJECT". With `require_consent`,
/// nothing is sent before coroner_set_consent(true).
coroner_status coroner_config_add_sentry_sink(coroner_config *config,
                                              const char *dsn,
                                              bool require_consent);
#endif

#if defined(CORONER_OTLP)
/// Adds a sink that delivers over OTLP, as OpenTelemetry log records over HTTP.
///
/// `endpoint` is the Collector's address, such as "http://localhost:4318"; records go to "v1/logs"
/// below it. NULL uses OTEL_EXPORTER_OTLP_ENDPOINT; if that is not set, no sink is added. `headers`
/// are sent with each request, in the form "name=value,name=value", percent-encoded; NULL uses
/// OTEL_EXPORTER_OTLP_HEADERS. The other variables of OpenTelemetry's exporters always apply. With
/// `require_consent`, nothing is sent before coroner_set_consent(true).
///
/// @pre The general rules apply. `endpoint` and `headers` may be NULL.
coroner_status coroner_config_add_otlp_sink(coroner_config *config,
                                            const char *endpoint,
                                            const char *headers,
                                            bool require_consent);
#endif

/// Removes all sinks, including the default one: reports stay in the store, up to its limits.
coroner_status coroner_config_set_no_sinks(coroner_config *config);

/// Sets whether to hide obvious secrets in the app's strings from the sinks. Default: yes.
///
/// Secrets are recognized by their form: the user in a URL, an Authorization header, tokens.
coroner_status coroner_config_set_scrub_secrets(coroner_config *config, bool scrub);

/// Sets a function that hides additional data: if it returns true, the string becomes `[Filtered]`.
///
/// It is called at the next launch for each string that the app or a library wrote (tags, user,
/// contexts, extra, breadcrumbs, messages), with the string's key, which may be empty. It may be
/// called on several threads at once. NULL changes nothing.
coroner_status coroner_config_set_scrub(coroner_config *config,
                                        bool (*hides)(const char *key,
                                                      const char *text,
                                                      void *context),
                                        void *context);

/// Sets whether earlier handlers are called first for every fault. Default: no.
///
/// If so, only faults that they don't handle are reported. For ahead-of-time compiled code of a
/// managed runtime. Otherwise they are called first only for faults that are known to be theirs.
coroner_status coroner_config_set_chain_first(coroner_config *config, bool chain_first);

/// Sets whether to take back crash signals whose handlers are replaced after install. Default: no.
///
/// The replacing handler is called after the report is written.
coroner_status coroner_config_set_reinstall_handlers(coroner_config *config, bool reinstall);

/// Sets whether to report crashes of children created by fork, each as its own run. Default: yes.
///
/// If not, such a crash is left to the earlier handlers.
coroner_status coroner_config_set_report_fork_children(coroner_config *config, bool report);

/// Sets whether to report uncaught Objective-C exceptions. Default: yes.
///
/// Their reports have name, reason and the throw's stack. macOS and iOS only; no effect elsewhere.
coroner_status coroner_config_set_objc_exceptions(coroner_config *config, bool report);

/// Sets whether to report, as non-fatal, exceptions that AppKit catches and only logs. Default: no.
///
/// Replaces `-[NSApplication reportException:]` with a method that reports and then calls the
/// original. macOS only; no effect elsewhere.
coroner_status coroner_config_set_appkit_exceptions(coroner_config *config, bool report);

/// Sets whether to remember deallocated Objective-C objects, by address and class. Default: no.
///
/// If the crashed thread used such an object, the report contains its class and the message that
/// was sent to it. Objects are not kept alive. Replaces `-dealloc` of `NSObject`, `NSProxy` and
/// `NSException`, and takes 576 KiB of memory. macOS and iOS only; no effect elsewhere.
coroner_status coroner_config_set_zombies(coroner_config *config, bool remember);

/// Sets whether to start a thread whose stack encodes the run's id. Default: no.
///
/// MetricKit's diagnostics for this process can then be matched to this run. The thread waits
/// forever and costs some tens of KiB of memory. macOS and iOS only; no effect elsewhere.
coroner_status coroner_config_set_run_id_thread(coroner_config *config, bool start);

/// Sets whether to attach the last 60 KiB of the process's stderr and of its stdout. Default: no.
///
/// The attachments are named `stderr` and `stdout`. This works for streams that are regular files
/// at install, not for terminals, pipes and sockets. The file is read at the crash; if the process
/// appends to it, what it contained before install is left out. The output may contain user input.
coroner_status coroner_config_set_keep_output(coroner_config *config, bool keep);

/// Sets whether a report contains the used parts of all threads' stacks. Default: no.
///
/// A debugger or `minidump-stackwalk` can then walk a minidump made from the report as far as the
/// report's own frames: 64 KiB of the crashed thread's stack, 16 KiB of each other thread's, 448
/// KiB of the others together. This memory may contain user input. The reserved file is 576 KiB
/// larger. Replaces coroner_config_set_stack_memory.
coroner_status coroner_config_set_stack_memory_all(coroner_config *config, bool all);

/// Sets whether the crashing process looks up symbol names in its own images.
///
/// Default: only on Apple systems, where the system libraries' symbols are available nowhere else.
/// The lookup runs after the rest of the report is on disk, and takes milliseconds, longer in a
/// large program. The names are used if neither the next launch nor a server finds a symbol file.
coroner_status coroner_config_set_symbol_names(coroner_config *config, bool names);

/// Sets after how many milliseconds an unresponsive thread is reported as hung. Default: 0, never.
///
/// Coroner watches threads that call coroner_hang_beat and, on Apple systems, the main thread while
/// it runs its run loop or the main queue.
coroner_status coroner_config_set_hang_threshold(coroner_config *config, uint32_t milliseconds);

/// Sets the maximum reports per hour for handled exceptions and non-fatal panics. Default: 16.
///
/// This is also the burst size. Hangs have a separate budget of the same size. Reports beyond the
/// limit are counted, and the next report contains their number.
coroner_status coroner_config_set_reports_per_hour(coroner_config *config, uint32_t reports);

/// Sets how many bytes of the crashed thread's stack a report contains. Default: 2048; 0 for none.
///
/// Unless it is 0, the report also contains 256 to 512 bytes around each address in the thread's
/// registers. This memory may contain user input.
coroner_status coroner_config_set_stack_memory(coroner_config *config, uint32_t bytes);

/// Sets the maximum time in milliseconds for writing a report. Default: 5000.
///
/// After that the process ends, and the report contains what was written so far.
coroner_status coroner_config_set_deadline(coroner_config *config, uint32_t milliseconds);

/// Sets how many undelivered reports the store keeps. Default: 100 reports, 90 days, 64 MiB.
///
/// The store keeps at most `reports` reports and as many runs without a report, for at most `days`
/// days, in at most `bytes` bytes.
coroner_status coroner_config_set_limits(coroner_config *config,
                                         uint32_t reports,
                                         uint32_t days,
                                         uint64_t bytes);

/// Sets whether a report contains all threads or only the crashed one. Default: all.
coroner_status coroner_config_set_all_threads(coroner_config *config, bool all);

/// Sets which threads get an alternate signal stack. Default: all.
coroner_status coroner_config_set_alternate_stacks(coroner_config *config,
                                                   coroner_alternate_stacks stacks);

#if (defined(CORONER_SENTRY) || defined(CORONER_OTLP))
/// Sets whether the user consents to sending reports, to Sentry and over OTLP.
///
/// If `given` is true, waiting reports are sent; if it is false, they are deleted and new ones are
/// not kept. The choice is stored and applies to later launches.
coroner_status coroner_set_consent(bool given);
#endif

/// Reports a handled exception, with the stacks of all threads as in a crash report.
///
/// The app continues and delivers the report within seconds. `language` is C++, Objective-C, Rust
/// or Swift; `kind` is the exception's type; `message` may be NULL.
///
/// Returns CORONER_STATUS_FULL if coroner_config_set_reports_per_hour is exceeded or 16 reports are
/// waiting. Dropped reports are counted, and the next report contains their number.
coroner_status coroner_report_exception(coroner_exception_language language,
                                        const char *kind,
                                        const char *message);

/// Reports a handled Objective-C or Swift error, with its underlying errors as causes.
///
/// The first of the `count` errors is the handled one; each other is the cause of the one before it
/// (`NSUnderlyingErrorKey`). At most eight are reported. `language` is Objective-C or Swift.
/// Otherwise like coroner_report_exception. coroner_report_nserror in coroner_apple.h converts an
/// `NSError`.
///
/// @pre `errors` must point to `count` errors: domains are strings, descriptions strings or NULL.
coroner_status coroner_report_coded_error(coroner_exception_language language,
                                          const coroner_coded_error *errors,
                                          size_t count);

/// Reports an exception of JavaScript, C#, Dart, Lua, Python, Ruby or PHP.
///
/// `frames` are the runtime's `count` frames, innermost first; the report also has the calling
/// thread's native stack. With `all_threads` the other threads are stopped for some milliseconds,
/// and the report contains their stacks. `kind` is the exception's type; `message` may be NULL.
///
/// Set `fatal` if the caller is going to end the process because of the exception. Otherwise the
/// app continues as after coroner_report_exception, with the same limits. Returns
/// CORONER_STATUS_FULL if no report was written.
///
/// @pre `frames` must point to `count` frames, whose strings may be NULL.
coroner_status coroner_report_foreign_exception(coroner_exception_language language,
                                                const char *kind,
                                                const char *message,
                                                const coroner_exception_frame *frames,
                                                size_t count,
                                                bool all_threads,
                                                bool fatal);

/// Marks the calling thread as alive and working.
///
/// The thread is hung if it calls neither this nor coroner_hang_idle again within the time set with
/// coroner_config_set_hang_threshold. The thread's first call starts watching it and takes a lock;
/// later calls cost one store and never wait.
void coroner_hang_beat(void);

/// Marks the calling thread as alive and about to wait for work.
///
/// No further call is expected from it until its next coroner_hang_beat.
void coroner_hang_idle(void);

/// Adds an app's sink: `deliver` is called for each report, one at a time, on a Coroner thread.
///
/// The store records under `name` which reports the sink has accepted: use the same name at every
/// launch, and a different one for each sink.
coroner_status coroner_config_add_sink(coroner_config *config,
                                       const char *name,
                                       coroner_sink_deliver deliver,
                                       void *context);

/// Sets a function that sees each report before the sinks and can drop it by returning false.
///
/// The function receives the report as JSON. A dropped report is deleted. The function is called at
/// a launch, in coroner_install or on a Coroner thread, possibly twice for the same report. NULL
/// changes nothing. Returns CORONER_STATUS_SYSTEM if the library was built without the feature
/// `json`, like the lean one.
coroner_status coroner_config_set_before_deliver(coroner_config *config,
                                                 coroner_before_deliver keep,
                                                 void *context);

/// Sets a function to call if the last run crashed and the app has not been notified yet.
///
/// It is called on a Coroner thread. NULL changes nothing.
coroner_status coroner_config_set_on_crashed_last_run(coroner_config *config,
                                                      coroner_crashed_last_run crashed,
                                                      void *context);

/// Installs Coroner: from now on a crash of this process leaves a report in the store.
///
/// Call it once, as early in main as possible. It frees the configuration, even on failure. It
/// doesn't wait for threads or the network, and starts a thread only if an earlier run left
/// something to deliver.
///
/// @pre `config` must not be used afterwards.
coroner_status coroner_install(coroner_config *config);

/// Restores the previous signal handlers and ends this run.
///
/// Coroner can be installed again afterwards.
coroner_status coroner_uninstall(void);

/// Starts a new run for this process, a child created by fork that continues on its own.
///
/// For daemons and the workers of a pre-forking server. Call it in the child after fork or daemon,
/// before it starts threads. Does nothing in a process that installed Coroner itself.
coroner_status coroner_after_fork(void);

/// Gives the calling thread an alternate signal stack, so that its stack overflow can be reported.
///
/// For threads that did not get one automatically.
coroner_status coroner_attach_current_thread(void);

/// Passes the calling thread's next signal with this number to the earlier handlers.
///
/// No report is written for it. For a managed runtime that is about to raise the signal on purpose.
coroner_status coroner_ignore_next_signal(int32_t signal);

/// Marks the run as cleanly exited, for apps that end neither by exit nor by returning from main.
coroner_status coroner_mark_clean_exit(void);

/// Delivers all reports in the store; waits at most `timeout_ms` milliseconds.
///
/// Returns CORONER_STATUS_TIMED_OUT if some are not delivered by then.
coroner_status coroner_flush(uint32_t timeout_ms);

/// Adds a MetricKit payload, an `MXDiagnosticPayload`'s `JSONRepresentation`; starts delivery.
///
/// A crash is matched with the run of its process and completes that run's report or, if there is
/// none, becomes its report. A hang, a slow launch, and excessive CPU time or disk writes each
/// become a report. Adding the same payload at each launch is harmless.
/// coroner_add_metric_kit_payloads in coroner_apple.h takes the payloads that MetricKit passes to
/// the app. The bytes are copied.
///
/// Returns CORONER_STATUS_INVALID_ARGUMENT if the JSON is not such a payload, CORONER_STATUS_SYSTEM
/// if the store can't be written or the library was built without the feature `system-reports`.
///
/// @pre `json` must point to `length` bytes.
coroner_status coroner_add_metric_kit_payload(const uint8_t *json, size_t length);

/// Fills in how the last run ended. Set `last_run->size` first.
coroner_status coroner_last_run(coroner_last_run_info *last_run);

/// Sets a tag, a short string by which reports can be searched. Replaces a tag with the same key.
coroner_status coroner_set_tag(const char *key, const char *value);

/// Changes the scope atomically: calls `change(context)` and commits its changes when it returns.
///
/// This covers what `change` sets and removes on this thread: tags, user, contexts, extra data,
/// fingerprint, attachments, flags, release, environment. The report of a crash during `change`
/// contains none of the changes. The call waits for other threads in this function. `change` must
/// return: it must not leave by an exception or `longjmp`.
coroner_status coroner_configure_scope(void (*change)(void *context), void *context);

/// Removes a tag. Does nothing if there is none.
coroner_status coroner_remove_tag(const char *key);

/// Sets the id of the app's current user; NULL for no user.
coroner_status coroner_set_user_id(const char *id);

/// Sets the app's current user: the app's id for them, their name and email address.
///
/// `name` and `email` may be NULL.
coroner_status coroner_set_user(const char *id, const char *name, const char *email);

/// Sets a context: related data as a JSON object such as {"pages": 3, "template": {"kind":
/// "letter"}}.
///
/// Replaces a context with the same name.
coroner_status coroner_set_context(const char *name, const char *json);

/// Removes a context. Does nothing if there is none.
coroner_status coroner_remove_context(const char *name);

/// Sets an extra value, as JSON, that is displayed but not searchable.
///
/// Replaces a value with the same key.
coroner_status coroner_set_extra(const char *key, const char *json);

/// Removes an extra value. Does nothing if there is none.
coroner_status coroner_remove_extra(const char *key);

/// Sets the strings by which a server groups reports, instead of its rules; 0 removes them.
///
/// @pre `parts` must point to `count` strings; it may be NULL if `count` is 0.
coroner_status coroner_set_fingerprint(const char *const *parts, size_t count);

/// Sets the severity of the app's events, instead of the one that fits the crash.
coroner_status coroner_set_level(coroner_level level);

/// Sets the app's current trace, to link reports to it. NULL for both ids removes it.
///
/// The ids have 32 and 16 hexadecimal digits, as in W3C's traceparent.
///
/// @pre `trace_id` and `span_id` must both be strings or both be NULL.
coroner_status coroner_set_trace(const char *trace_id, const char *span_id);

/// Records the result of evaluating a feature flag.
///
/// The 100 most recently evaluated are kept, in that order.
coroner_status coroner_set_flag(const char *flag, bool result);

/// Sets whether the app is in the foreground, for apps that can be.
///
/// Reports include it: it shows whether the user saw a hang.
coroner_status coroner_set_foreground(bool is_foreground);

/// Changes this run's release, for apps that learn it only after install.
coroner_status coroner_set_release(const char *release);

/// Changes this run's environment, such as "production".
coroner_status coroner_set_environment(const char *environment);

/// Adds a file to this run's reports under `name`.
///
/// The file is read when a report is sent: after a crash, at the next launch. `content_type` may be
/// NULL; a NULL `path` removes the attachment.
coroner_status coroner_add_attachment(const char *name, const char *path, const char *content_type);

/// Copies `size` bytes into this run's directory, to attach them to its reports under `name`.
///
/// For a screenshot or a view tree of the app's last moment. Replaces an attachment with the same
/// name. At most 20 MiB; the name consists of letters, digits, `.`, `-` and `_`. `content_type` may
/// be NULL.
///
/// @pre `bytes` must point to `size` bytes.
coroner_status coroner_keep_attachment(const char *name,
                                       const uint8_t *bytes,
                                       size_t size,
                                       const char *content_type);

/// Delivers user feedback, usually about the last crash.
///
/// `event_id` is the crash's event id, 32 hexadecimal digits, or NULL. `name` and `email` may be
/// NULL. CORONER_STATUS_FULL if no sink accepted it.
coroner_status coroner_feedback(const char *event_id,
                                const char *message,
                                const char *name,
                                const char *email);

/// Counts a handled error for release health.
///
/// The session then counts as one with errors, unless the run crashes.
coroner_status coroner_count_error(void);

/// Adds a breadcrumb, an event such as "opened the document". `category` may be NULL.
///
/// A report contains the most recent breadcrumbs.
coroner_status coroner_add_breadcrumb(const char *category,
                                      const char *message,
                                      coroner_level level);

/// Returns the reason for the last failed call on this thread. Never NULL; empty if no call failed.
///
/// Valid until the next call on this thread fails.
const char *coroner_last_error(void);

/// Returns the version of this library, such as "0.1.0".
const char *coroner_version(void);

/// Registers the unwind rule for frames whose program counter is in `size` bytes at `start`.
///
/// For the code of a JIT, an interpreter or a trampoline. The rule holds at every instruction of
/// the range, applies to all crash and live backtraces of this process, and takes precedence over
/// unwind data, frame pointers and all other methods. Where ranges overlap, the shortest applies.
///
/// Can be called before coroner_install and after coroner_uninstall. Returns CORONER_STATUS_FULL if
/// 512 ranges are registered: a JIT should register each memory mapping rather than each function.
///
/// `registration` receives a number for coroner_unregister_unwind_range, to be called before the
/// code is unmapped. It may be NULL if the range is never unregistered.
///
/// @pre `rule->saved` must have `saved_count` elements; `registration` must be NULL or writable.
coroner_status coroner_register_unwind_range(const void *start,
                                             size_t size,
                                             const coroner_unwind_rule *rule,
                                             uint64_t *registration);

/// Unregisters a range. Returns CORONER_STATUS_INVALID_ARGUMENT if the number is unknown.
coroner_status coroner_unregister_unwind_range(uint64_t registration);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CORONER_H */
