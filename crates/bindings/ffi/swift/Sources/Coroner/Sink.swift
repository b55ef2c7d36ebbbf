import CCoroner

extension Coroner {
    /// A destination for reports.
    public struct Sink: Sendable {
        let add: @Sendable (OpaquePointer) throws -> Void

        /// The result of an app's sink.
        public enum Delivered: UInt32, Sendable {
            /// The sink accepted the report.
            case taken = 0
            /// The sink rejected the report; it is not offered again.
            case rejected
            /// The sink can't accept the report now; it is offered again after a minute at the earliest.
            case retry
        }

        /// A report for an app's sink.
        public struct Report: Sendable {
            /// The event id: 32 hexadecimal digits. If the same report is delivered twice, the id is the same.
            public let eventID: String
            /// The report as JSON.
            public let json: String
            /// The report's file as the dying process wrote it.
            public let raw: [UInt8]
        }

        private init(_ add: @escaping @Sendable (OpaquePointer) throws -> Void) {
            self.add = add
        }

        /// Writes each report to a folder, as JSON and in its original form.
        public static func folder(_ path: String) -> Sink {
            Sink { config in try Coroner.text(path) { try Coroner.check(coroner_config_add_folder_sink(config, $0)) } }
        }

        /// An app's sink: `deliver` is called for each report, one at a time, on a Coroner thread. The store records under
        /// `name` which reports the sink has accepted: use the same name at every launch, and a different one for each sink.
        public static func custom(_ name: String, deliver: @escaping @Sendable (Report) -> Delivered) -> Sink {
            Sink { config in
                let call: coroner_sink_deliver = { context, given in
                    guard let given = given?.pointee else { return CORONER_DELIVERED_RETRY }
                    let raw = Array(UnsafeBufferPointer(start: given.raw, count: given.raw_length))
                    let report = Report(
                        eventID: String(cString: given.event_id), json: String(cString: given.json), raw: raw)
                    return coroner_delivered(Kept<@Sendable (Report) -> Delivered>.closure(from: context)(report).rawValue)
                }
                try Coroner.text(name) {
                    try Coroner.check(coroner_config_add_sink(config, $0, call, Kept(deliver).forever()))
                }
            }
        }

        #if CORONER_SENTRY
            /// Delivers to a Sentry project, or to a server that implements Sentry's protocol. With `requireConsent`, nothing
            /// is sent before `setConsent(true)`.
            public static func sentry(dsn: String, requireConsent: Bool = false) -> Sink {
                Sink { config in
                    try Coroner.text(dsn) { try Coroner.check(coroner_config_add_sentry_sink(config, $0, requireConsent)) }
                }
            }
        #endif

        #if CORONER_OTLP
            /// Delivers to an OpenTelemetry Collector, such as "http://localhost:4318"; `nil` uses OTEL_EXPORTER_OTLP_ENDPOINT.
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
