import CCoroner

extension Coroner {
    /// Who gets reports.
    public struct Sink: Sendable {
        let add: @Sendable (OpaquePointer) throws -> Void

        /// What a sink of the app's own made of a report.
        public enum Delivered: Int32, Sendable {
            /// It has it, for good.
            case taken = 0
            /// It will never take it, and is not asked again.
            case rejected
            /// It could not take it now: it is asked again, a minute later at the earliest.
            case retry
        }

        /// A report that a sink of the app's own is given.
        public struct Report: Sendable {
            /// The event id: 32 hexadecimal digits. The same report may come twice, and has the same id then.
            public let eventID: String
            /// The report as JSON.
            public let json: String
            /// The report's file as the dying process wrote it.
            public let raw: [UInt8]
        }

        private init(_ add: @escaping @Sendable (OpaquePointer) throws -> Void) {
            self.add = add
        }

        /// Writes each report to a folder, as JSON and as the crash left it.
        public static func folder(_ path: String) -> Sink {
            Sink { config in try Coroner.text(path) { try Coroner.check(coroner_config_add_folder_sink(config, $0)) } }
        }

        /// The app's own: `deliver` is called for each report, one at a time, on a thread of Coroner's. The store remembers under `name` what it has taken.
        public static func custom(_ name: String, deliver: @escaping @Sendable (Report) -> Delivered) -> Sink {
            Sink { config in
                let call: coroner_sink_deliver = { context, given in
                    guard let given = given?.pointee else { return Delivered.retry.rawValue }
                    let raw = Array(UnsafeBufferPointer(start: given.raw, count: given.raw_length))
                    let report = Report(
                        eventID: String(cString: given.event_id), json: String(cString: given.json), raw: raw)
                    return Kept<@Sendable (Report) -> Delivered>.of(context)(report).rawValue
                }
                try Coroner.text(name) {
                    try Coroner.check(coroner_config_add_sink(config, $0, call, Kept(deliver).forever()))
                }
            }
        }

        #if CORONER_SENTRY
            /// A project of Sentry, or of a server that speaks its protocol, by its address with the key to it. With `requireConsent` nothing leaves before
            /// `setConsent(true)`.
            public static func sentry(dsn: String, requireConsent: Bool = false) -> Sink {
                Sink { config in
                    try Coroner.text(dsn) { try Coroner.check(coroner_config_add_sentry_sink(config, $0, requireConsent)) }
                }
            }
        #endif

        #if CORONER_OTLP
            /// An OpenTelemetry Collector, such as "http://localhost:4318"; `nil` for what OTEL_EXPORTER_OTLP_ENDPOINT says.
            public static func otlp(endpoint: String? = nil, headers: String? = nil, requireConsent: Bool = false) -> Sink {
                Sink { config in
                    try Coroner.text(endpoint) { endpoint in
                        try Coroner.text(headers) { headers in
                            try Coroner.check(coroner_config_add_otlp_sink(config, endpoint, headers, requireConsent))
                        }
                    }
                }
            }
        #endif
    }
}
