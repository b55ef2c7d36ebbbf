// Coroner for Swift: `coroner.h` with Swift's types.
//
//     import Coroner
//
//     var configuration = Coroner.Configuration(app: "com.example.paint")
//     configuration.version = "2.1.0"
//     do {
//         try Coroner.install(configuration)
//     } catch {
//         print("crashes will not be reported: \(error)")
//     }
//
// All functions may be called from any thread. For functions that only the C API has, import CCoroner.

import CCoroner

/// A crash reporter. Call `install` first; the other functions add data to reports, report handled errors, and capture backtraces.
public enum Coroner {
    /// The reason that a call failed.
    public struct Failure: Error, Equatable, Sendable, CustomStringConvertible {
        /// A failure's category.
        public enum Kind: Int, Sendable {
            /// An argument is out of range or contains a NUL.
            case invalidArgument = 1
            /// Coroner is already installed in this process.
            case alreadyInstalled
            /// Coroner is not installed in this process.
            case notInstalled
            /// An operating system call failed.
            case system
            /// A limit is reached.
            case full
            /// Timed out.
            case timedOut
            /// A bug in Coroner.
            case `internal`
        }

        /// The failure's category.
        public let kind: Kind
        /// The reason as text.
        public let reason: String

        public var description: String { reason.isEmpty ? "\(kind)" : reason }
    }

    /// A run's outcome.
    public enum Outcome: Int, Sendable {
        /// No earlier run.
        case firstLaunch = 0
        /// The app exited.
        case cleanExit
        /// The app was terminated by SIGTERM.
        case terminated
        /// The app crashed.
        case crashed
        /// Coroner was uninstalled during the run.
        case uninstalled
        /// The app ended without a trace: killed, out of memory, or a power failure.
        case unknown
        /// The app was not responding when it was terminated.
        case hung
        /// The system killed the app to free memory.
        case outOfMemory
        /// The user quit or force-stopped the app.
        case endedByUser
        /// The system terminated the app for another reason.
        case endedBySystem
        /// A signal that isn't a crash terminated the app: Ctrl-C, a hangup, an alarm.
        case endedBySignal
        /// The machine rebooted or lost power.
        case systemRestart
        /// The kernel killed the app at its CPU time limit.
        case cpuLimit
        /// The app ended while a debugger was attached.
        case debugged
    }

    /// The app's last run and how it ended.
    public struct LastRun: Sendable {
        /// The run's outcome.
        public let outcome: Outcome
        /// The report's event id, 32 hexadecimal digits; `nil` if the run left no report.
        public let eventID: String?
        /// Milliseconds from install to the crash, or to the hang's report; `nil` for other outcomes.
        public let ranForMilliseconds: UInt64?
    }

    /// Installs Coroner: from now on a crash of this process leaves a report. Call it once, as early as possible.
    /// It doesn't wait for threads or the network.
    public static func install(_ configuration: Configuration) throws {
        let config = try configuration.makeConfig()
        try check(coroner_install(config))
    }

    /// Restores the previous signal handlers and ends this run. Coroner can be installed again afterwards.
    public static func uninstall() throws {
        try check(coroner_uninstall())
    }

    /// The app's last run; `nil` if Coroner is not installed.
    public static var lastRun: LastRun? {
        var info = coroner_last_run_info()
        info.size = MemoryLayout<coroner_last_run_info>.size
        guard coroner_last_run(&info) == CORONER_STATUS_OK, let outcome = Outcome(rawValue: Int(info.outcome.rawValue))
        else { return nil }
        let id = withUnsafeBytes(of: info.event_id) { bytes in
            String(decoding: bytes.prefix(while: { $0 != 0 }), as: UTF8.self)
        }
        return LastRun(
            outcome: outcome, eventID: id.isEmpty ? nil : id,
            ranForMilliseconds: info.ran_for_ms == 0 ? nil : info.ran_for_ms)
    }

    /// Delivers all reports in the store; waits at most that many milliseconds. Throws `.timedOut` if some are not delivered by then.
    public static func flush(timeoutMilliseconds: UInt32) throws {
        try check(coroner_flush(timeoutMilliseconds))
    }

    /// Marks the run as cleanly exited, for apps that end neither by exit nor by returning from main.
    public static func markCleanExit() throws {
        try check(coroner_mark_clean_exit())
    }

    /// Marks the calling thread as alive and working. It is hung if it calls neither this nor `hangIdle` again within
    /// `Configuration.hangThresholdMilliseconds`. On Apple systems the main thread is watched without it.
    public static func hangBeat() {
        coroner_hang_beat()
    }

    /// Marks the calling thread as alive and about to wait for work.
    public static func hangIdle() {
        coroner_hang_idle()
    }

    #if CORONER_SENTRY || CORONER_OTLP
        /// Sets whether the user consents to sending reports, to Sentry and over OTLP. The choice is stored and applies to later launches.
        public static func setConsent(_ given: Bool) throws {
            try check(coroner_set_consent(given))
        }
    #endif

    /// The library's version, such as "0.1.0".
    public static var version: String { String(cString: coroner_version()) }

    /// Throws the failure of a C call.
    static func check(_ status: coroner_status) throws {
        if status == CORONER_STATUS_OK { return }
        let kind = Failure.Kind(rawValue: Int(status.rawValue)) ?? .internal
        throw Failure(kind: kind, reason: String(cString: coroner_last_error()))
    }

    /// Calls `body` with a C string. Throws if the text contains a NUL, because C would see only the part before it.
    static func text<Result>(_ text: String?, _ body: (UnsafePointer<CChar>?) throws -> Result) throws -> Result {
        guard let text else { return try body(nil) }
        guard !text.utf8.contains(0) else { throw Failure(kind: .invalidArgument, reason: "the text contains a NUL") }
        return try text.withCString { try body($0) }
    }
}
