import CCoroner

extension Coroner {
    /// What an app decides before `install`. What is `nil` has Coroner's default.
    public struct Configuration: Sendable {
        /// The app's name or, better, its identifier: it names the default store.
        public var app: String
        /// The app's version, such as "2.1.0".
        public var version: String?
        /// Where the app runs, such as "production".
        public var environment: String?
        /// The release, by which servers distinguish versions. Default: app and version.
        public var release: String?
        /// One of several builds of a release.
        public var dist: String?
        /// The directory of the store, which is made for its owner only. Default: `~/Library/Application Support/APP/Coroner` on Apple's systems,
        /// `~/.local/state/APP/coroner` on Linux. An extension and its app share one in the folder of their app group.
        public var storeDirectory: String?
        /// Who gets the reports. Default, with `nil`: the folder `reports` in the store. None, with an empty list: they stay in the store.
        public var sinks: [Sink]?
        /// How much crashes tell.
        public var crashes = Crashes()
        /// Which exceptions are reported.
        public var exceptions = Exceptions()
        /// What happens to a report before sinks get it.
        public var delivery = Delivery()
        /// How much there may be of what.
        public var limits = Limits()
        /// After how many milliseconds a watched thread that does not answer hangs, and is reported. Default: never.
        public var hangThresholdMilliseconds: UInt32?
        /// Whether what the process wrote to stderr and stdout last goes with its reports, where those are files.
        public var keepOutput: Bool?
        /// Whether a thread's stack says the run's id, by which what MetricKit says is joined with the run (macOS, iOS).
        public var runIDThread: Bool?

        /// The defaults for the app `app`, such as "com.example.paint".
        public init(app: String) {
            self.app = app
        }

        /// How much crashes tell.
        public struct Crashes: Sendable {
            /// How many bytes of the crashed thread's stack are in a report, and whether what registers point to is: 0 for neither.
            public var stackMemory: UInt32?
            /// Whether the used parts of all threads' stacks are.
            public var stackMemoryAll: Bool?
            /// Whether all threads are, or only the crashed one.
            public var allThreads: Bool?
            /// Whether handlers that were installed before are asked first about every fault.
            public var chainFirst: Bool?
            /// Whether a crash signal that another handler has taken after the install is taken back.
            public var reinstallHandlers: Bool?
            /// Whether the dying process names the report's addresses.
            public var symbolNames: Bool?

            public init() {}
        }

        /// Which exceptions are reported.
        public struct Exceptions: Sendable {
            /// Whether uncaught exceptions of Objective-C are, with name, reason and the stack of the throw. Default: yes.
            public var objectiveC: Bool?
            /// Whether exceptions that AppKit catches and only logs are. Default: no.
            public var appKit: Bool?
            /// Whether a report names the class of a deallocated object that was messaged. Default: no.
            public var zombies: Bool?

            public init() {}
        }

        /// What happens to a report before sinks get it.
        public struct Delivery: Sendable {
            /// Whether what is surely a secret by its form is hidden. Default: yes.
            public var scrubSecrets: Bool?
            /// Hides more: gets a key and the text under it, and says whether the text is to be hidden.
            public var hides: (@Sendable (_ key: String, _ text: String) -> Bool)?
            /// Sees each report as JSON, and says whether the sinks get it.
            public var beforeDeliver: (@Sendable (_ json: String) -> Bool)?
            /// Is called, on a thread of Coroner's, if the last run crashed and the app has not been notified yet: with the event id, if there is a report.
            public var onCrashedLastRun: (@Sendable (_ eventID: String?) -> Void)?

            public init() {}
        }

        /// How much there may be of what.
        public struct Limits: Sendable {
            /// How many reports of handled errors it writes in an hour. Default: 16.
            public var reportsPerHour: UInt32?
            /// How long writing a report may take, in milliseconds. Default: 5000.
            public var deadlineMilliseconds: UInt32?
            /// How much the store keeps of what can't be delivered.
            public var store: (reports: UInt32, days: UInt32, bytes: UInt64)?

            public init() {}
        }

        /// The configuration of C that says the same.
        func made() throws -> OpaquePointer {
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
                return Kept<@Sendable (String, String) -> Bool>.of(context)(String(cString: key), String(cString: text))
            }
            try Coroner.check(coroner_config_set_scrub(config, call, Kept(hides).forever()))
        }
        if let beforeDeliver {
            let call: coroner_before_deliver = { context, json in
                guard let json else { return true }
                return Kept<@Sendable (String) -> Bool>.of(context)(String(cString: json))
            }
            try Coroner.check(coroner_config_set_before_deliver(config, call, Kept(beforeDeliver).forever()))
        }
        if let onCrashedLastRun {
            let call: coroner_crashed_last_run = { context, id in
                let id = id.map { String(cString: $0) } ?? ""
                Kept<@Sendable (String?) -> Void>.of(context)(id.isEmpty ? nil : id)
            }
            try Coroner.check(coroner_config_set_on_crashed_last_run(config, call, Kept(onCrashedLastRun).forever()))
        }
    }
}

/// A closure that C calls by a pointer, for the process's life.
final class Kept<Closure> {
    let closure: Closure

    init(_ closure: Closure) {
        self.closure = closure
    }

    func forever() -> UnsafeMutableRawPointer {
        Unmanaged.passRetained(self).toOpaque()
    }

    /// The closure that `forever` made a pointer of.
    static func of(_ context: UnsafeMutableRawPointer?) -> Closure {
        Unmanaged<Kept<Closure>>.fromOpaque(context!).takeUnretainedValue().closure
    }
}
