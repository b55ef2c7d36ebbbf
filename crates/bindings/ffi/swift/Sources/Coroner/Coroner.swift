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
// All functions may be called from any thread. What C has and this has not is one import away: `import CCoroner`.

import CCoroner

/// A crash reporter. `install` begins; the rest describes the app to the reports, reports errors that the app has handled, and takes stacks.
public enum Coroner {
    /// Why a call did not do what it was to do.
    public struct Failure: Error, Equatable, Sendable, CustomStringConvertible {
        /// What kind of failure it is.
        public enum Kind: Int, Sendable {
            /// An argument is out of range or has a NUL.
            case invalidArgument = 1
            /// Coroner is installed already, in this process.
            case alreadyInstalled
            /// Coroner is not installed in this process.
            case notInstalled
            /// The operating system refused something.
            case system
            /// There is no room for it: a limit is reached.
            case full
            /// It did not come to its end in the time given.
            case timedOut
            /// A mistake in Coroner itself.
            case `internal`
        }

        /// What kind of failure it is.
        public let kind: Kind
        /// The reason, in words.
        public let reason: String

        public var description: String { reason.isEmpty ? "\(kind)" : reason }
    }

    /// How a run ended.
    public enum Outcome: Int, Sendable {
        /// There was no run before this one.
        case firstLaunch = 0
        /// The app ended by itself.
        case cleanExit
        /// It was asked to end by SIGTERM.
        case terminated
        /// It crashed.
        case crashed
        /// Coroner was uninstalled while it ran.
        case uninstalled
        /// It ended without a trace: killed, out of memory, power failure.
        case unknown
        /// It did not answer when it was ended.
        case hung
        /// The system ended it to have its memory.
        case outOfMemory
        /// Its user ended it.
        case endedByUser
        /// The system ended it for another reason.
        case endedBySystem
        /// It ended by a signal that ends a process by default and is no crash: Ctrl-C, a hangup, an alarm.
        case endedBySignal
        /// The machine was started again.
        case systemRestart
        /// The kernel killed it at the limit of its processor time.
        case cpuLimit
        /// It was ended while a debugger was attached.
        case debugged
    }

    /// How the last run of the app ended.
    public struct LastRun: Sendable {
        /// How it ended.
        public let outcome: Outcome
        /// The event id of its report, 32 hexadecimal digits; `nil` if it left none.
        public let eventID: String?
        /// Milliseconds from install to the crash, or to the report of the hang; `nil` if it ended otherwise.
        public let ranForMilliseconds: UInt64?
    }

    /// Installs Coroner: from here on a crash of this process leaves a report. Call it once, as early as can be. It waits for no thread and no network.
    public static func install(_ configuration: Configuration) throws {
        let config = try configuration.made()
        try check(coroner_install(config))
    }

    /// Gives the signals back to who had them before, and ends this run. Coroner can be installed again afterwards.
    public static func uninstall() throws {
        try check(coroner_uninstall())
    }

    /// How the last run ended; `nil` if Coroner is not installed.
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

    /// Delivers what is in the store, and waits for it, at most that many milliseconds. Throws `.timedOut` if something is left.
    public static func flush(timeoutMilliseconds: UInt32) throws {
        try check(coroner_flush(timeoutMilliseconds))
    }

    /// Notes that the app has ended well, for apps that then leave otherwise than by exit or the end of main.
    public static func markCleanExit() throws {
        try check(coroner_mark_clean_exit())
    }

    /// The calling thread is alive, and at work: if neither this nor `hangIdle` comes again within `Configuration.hangThreshold`, it hangs. On Apple's
    /// systems the main thread is watched without it.
    public static func hangBeat() {
        coroner_hang_beat()
    }

    /// The calling thread is alive, and is going to wait for work.
    public static func hangIdle() {
        coroner_hang_idle()
    }

    #if CORONER_SENTRY || CORONER_OTLP
        /// Says whether the user agrees that reports are sent, to Sentry and by OTLP. It is remembered over launches.
        public static func setConsent(_ given: Bool) throws {
            try check(coroner_set_consent(given))
        }
    #endif

    /// The version of the library, such as "0.1.0".
    public static var version: String { String(cString: coroner_version()) }

    /// Throws what a call of C answered.
    static func check(_ status: coroner_status) throws {
        if status == CORONER_STATUS_OK { return }
        let kind = Failure.Kind(rawValue: Int(status.rawValue)) ?? .internal
        throw Failure(kind: kind, reason: String(cString: coroner_last_error()))
    }

    /// Calls `body` with the text as C has it. One with a NUL, of which C would have only the beginning, is refused.
    static func text<Result>(_ text: String?, _ body: (UnsafePointer<CChar>?) throws -> Result) throws -> Result {
        guard let text else { return try body(nil) }
        guard !text.utf8.contains(0) else { throw Failure(kind: .invalidArgument, reason: "a text has a NUL in it") }
        return try text.withCString { try body($0) }
    }
}
