// A stand-in for what Coroner's module needs of MetricKit (<MetricKit/MXDiagnosticPayload.h> as Swift imports it), for the compiler alone.

import Foundation

open class MXDiagnosticPayload: NSObject {
    open func jsonRepresentation() -> Data { Data() }
}
