#if canImport(MetricKit)
    import CCoroner
    import Foundation
    import MetricKit

    extension Coroner {
        /// Takes what MetricKit says of the app, as its subscriber gets it, or, after `install`, from `pastDiagnosticPayloads`: each crash is put to the
        /// run of its process; hangs, slow launches and excesses are reports of their own. A payload that can't be taken keeps none of the others back; what is thrown is of the first such one.
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
