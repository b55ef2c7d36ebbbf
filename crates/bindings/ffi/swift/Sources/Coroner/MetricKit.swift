#if canImport(MetricKit)
    import CCoroner
    import Foundation
    import MetricKit

    extension Coroner {
        /// Adds MetricKit payloads, from the app's subscriber or, after `install`, from `pastDiagnosticPayloads`.
        ///
        /// A crash is matched with the run of its process. A hang, a slow launch, and excessive CPU time or disk writes each
        /// become a report. A rejected payload doesn't prevent the others from being added; the first failure is thrown.
        @available(iOS 14.0, macOS 12.0, visionOS 1.0, *)
        public static func add(_ payloads: [MXDiagnosticPayload]) throws {
            var failure: (any Error)?
            for payload in payloads {
                let json = [UInt8](payload.jsonRepresentation())
                do {
                    try check(coroner_add_metric_kit_payload(json, json.count))
                } catch {
                    failure = failure ?? error
                }
            }
            if let failure { throw failure }
        }
    }
#endif
