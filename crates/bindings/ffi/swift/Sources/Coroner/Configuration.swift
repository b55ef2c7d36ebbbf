import CCoroner

extension Coroner {
    /// An app's choices for `install`. `nil` selects the default.
    public struct Configuration: Sendable {
        /// The app's identifier. It names the default store, so don't change it between versions.
        public var app: String
        /// The app's version, such as "2.1.0".
        public var version: String?
        /// Where the app runs, such as "production".
        public var environment: String?
        /// The release, by which servers distinguish versions. Default: app and version.
        public var release: String?
        /// One of several builds of a release.
        public var dist: String?
        /// The store's directory, created with access for its owner only. An extension and its app share a store in their
        /// app group's container. Default: `~/Library/Application Support/APP/Coroner` on Apple systems,
        /// `~/.local/state/APP/coroner` on Linux.
        public var storeDirectory: String?
        /// The sinks that reports are delivered to. `nil`: the folder `reports` in the store. Empty: none, reports stay in the store.
        public var sinks: [Sink]?
        /// Settings for crash reports.
        public var crashes = Crashes()
        /// The exceptions to report.
        public var exceptions = Exceptions()
        /// Processing of reports before delivery.
        public var delivery = Delivery()
        /// Limits of reports and the store.
        public var limits = Limits()
        /// Milliseconds after which an unresponsive watched thread is reported as hung. Default: never.
        public var hangThresholdMilliseconds: UInt32?
        /// Whether to attach the end of the process's stderr and stdout, if they are files. Default: no.
        public var keepOutput: Bool?
        /// Whether to start a thread whose stack encodes the run's id, to match MetricKit's diagnostics to this run (macOS, iOS). Default: no.
        public var runIDThread: Bool?

        /// Creates a configuration with the defaults for an app, such as "com.example.paint".
        public init(app: String) {
            self.app = app
        }

        /// Settings for crash reports.
        public struct Crashes: Sendable {
            /// How many bytes of the crashed thread's stack a report contains. 0 also leaves out the memory that registers point to. Default: 2048.
            public var stackMemory: UInt32?
            /// Whether a report contains the used parts of all threads' stacks. Default: no.
            public var stackMemoryAll: Bool?
            /// Whether a report contains all threads or only the crashed one. Default: all.
            public var allThreads: Bool?
            /// Whether earlier handlers are called first for every fault. Default: no.
            public var chainFirst: Bool?
            /// Whether to take back crash signals whose handlers are replaced after `install`. Default: no.
            public var reinstallHandlers: Bool?
            /// Whether the crashing process looks up symbol names in its own images. Default: only on Apple systems.
            public var symbolNames: Bool?

            public init() {}
        }

        /// The exceptions to report.
        public struct Exceptions: Sendable {
            /// Whether to report uncaught Objective-C exceptions with name, reason and the throw's stack. Default: yes.
            public var objectiveC: Bool?
            /// Whether to report exceptions that AppKit catches and only logs. Default: no.
            public var appKit: Bool?
            /// Whether a report contains the class of a deallocated object that was messaged. Default: no.
            public var zombies: Bool?

            public init() {}
        }

        /// Processing of reports before delivery.
        public struct Delivery: Sendable {
            /// Whether to hide obvious secrets, recognized by their form. Default: yes.
            public var scrubSecrets: Bool?
            /// Receives a key and its text; returns whether to hide the text.
            public var hides: (@Sendable (_ key: String, _ text: String) -> Bool)?
            /// Receives each report as JSON; returns whether to pass it to the sinks.
            public var beforeDeliver: (@Sendable (_ json: String) -> Bool)?
            /// Called on a Coroner thread if the last run crashed and the app has not been notified yet, with the event id if there is a report.
            public var onCrashedLastRun: (@Sendable (_ eventID: String?) -> Void)?

            public init() {}
        }

        /// Limits of reports and the store.
        public struct Limits: Sendable {
            /// Maximum reports per hour for handled errors. Default: 16.
            public var reportsPerHour: UInt32?
            /// Maximum time in milliseconds for writing a report. Default: 5000.
            public var deadlineMilliseconds: UInt32?
            /// Maximum of undelivered reports in the store. Default: 100 reports, 90 days, 64 MiB.
            public var store: (reports: UInt32, days: UInt32, bytes: UInt64)?

            public init() {}
        }

        /// Creates the C configuration.
        func makeConfig() throws -> OpaquePointer {
            guard let config = try Coroner.text(app, { coroner_config_new($0) }) else {
                throw Failure(kind: .invalidArgument, reason: String(cString: coroner_last_error()))
            }
            do {
                try set(config)
                return config
            } catch {
                coroner_config_free(config)
                throw error
            }
        }

        private func set(_ config: OpaquePointer) throws {
            let texts: [(String?, (OpaquePointer?, UnsafePointer<CChar>?) -> coroner_status)] = [
                (version, coroner_config_set_version), (environment, coroner_config_set_environment),
                (release, coroner_config_set_release), (dist, coroner_config_set_dist),
                (storeDirectory, coroner_config_set_store_dir),
            ]
            for case (let value?, let setter) in texts {
                try Coroner.text(value) { try Coroner.check(setter(config, $0)) }
            }
            let switches: [(Bool?, (OpaquePointer?, Bool) -> coroner_status)] = [
                (crashes.stackMemoryAll, coroner_config_set_stack_memory_all),
                (crashes.allThreads, coroner_config_set_all_threads),
                (crashes.chainFirst, coroner_config_set_chain_first),
                (crashes.reinstallHandlers, coroner_config_set_reinstall_handlers),
                (crashes.symbolNames, coroner_config_set_symbol_names),
                (exceptions.objectiveC, coroner_config_set_objc_exceptions),
                (exceptions.appKit, coroner_config_set_appkit_exceptions),
                (exceptions.zombies, coroner_config_set_zombies),
                (delivery.scrubSecrets, coroner_config_set_scrub_secrets),
                (keepOutput, coroner_config_set_keep_output),
                (runIDThread, coroner_config_set_run_id_thread),
            ]
            for case (let value?, let setter) in switches {
                try Coroner.check(setter(config, value))
            }
            let numbers: [(UInt32?, (OpaquePointer?, UInt32) -> coroner_status)] = [
                (crashes.stackMemory, coroner_config_set_stack_memory),
                (hangThresholdMilliseconds, coroner_config_set_hang_threshold),
                (limits.reportsPerHour, coroner_config_set_reports_per_hour),
                (limits.deadlineMilliseconds, coroner_config_set_deadline),
            ]
            for case (let value?, let setter) in numbers {
                try Coroner.check(setter(config, value))
            }
            if let store = limits.store {
                try Coroner.check(coroner_config_set_limits(config, store.reports, store.days, store.bytes))
            }
            try delivery.set(config)
            if let sinks {
                try Coroner.check(coroner_config_set_no_sinks(config))
                for sink in sinks { try sink.add(config) }
            }
        }
    }
}

extension Coroner.Configuration.Delivery {
    func set(_ config: OpaquePointer) throws {
        if let hides {
            let call: @convention(c) (UnsafePointer<CChar>?, UnsafePointer<CChar>?, UnsafeMutableRawPointer?) -> Bool = {
                key, text, context in
                guard let key, let text else { return false }
                return Kept<@Sendable (String, String) -> Bool>.closure(from: context)(String(cString: key), String(cString: text))
            }
            try Coroner.check(coroner_config_set_scrub(config, call, Kept(hides).forever()))
        }
        if let beforeDeliver {
            let call: coroner_before_deliver = { context, json in
                guard let json else { return true }
                return Kept<@Sendable (String) -> Bool>.closure(from: context)(String(cString: json))
            }
            try Coroner.check(coroner_config_set_before_deliver(config, call, Kept(beforeDeliver).forever()))
        }
        if let onCrashedLastRun {
            let call: coroner_crashed_last_run = { context, id in
                let id = id.map { String(cString: $0) } ?? ""
                Kept<@Sendable (String?) -> Void>.closure(from: context)(id.isEmpty ? nil : id)
            }
            try Coroner.check(coroner_config_set_on_crashed_last_run(config, call, Kept(onCrashedLastRun).forever()))
        }
    }
}

/// Keeps a closure alive until the process ends, so that C can call it through a pointer.
final class Kept<Closure> {
    let closure: Closure

    init(_ closure: Closure) {
        self.closure = closure
    }

    func forever() -> UnsafeMutableRawPointer {
        Unmanaged.passRetained(self).toOpaque()
    }

    /// Returns the closure whose pointer `forever` returned.
    static func closure(from context: UnsafeMutableRawPointer?) -> Closure {
        Unmanaged<Kept<Closure>>.fromOpaque(context!).takeUnretainedValue().closure
    }
}
