// A stub of MetricKit for the compiler: the declarations that Coroner's module uses, as Swift imports <MetricKit/MXDiagnosticPayload.h>.

import Foundation

open class MXDiagnosticPayload: NSObject {
    open func jsonRepresentation() -> Data { Data() }
}
