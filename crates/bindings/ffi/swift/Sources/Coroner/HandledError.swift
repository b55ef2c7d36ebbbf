import CCoroner
import Foundation

extension Coroner {
    /// Reports a handled error, with its underlying errors as causes and the stacks of all threads. The app continues.
    /// Throws `.full` if `Configuration.Limits.reportsPerHour` is exceeded.
    @inline(never)
    public static func report(_ error: any Error) throws {
        // One allocation holds all strings: each error's domain and description in turn.
        var texts: [CChar] = []
        var errors: [(domain: Int, description: Int, code: Int)] = []
        func add(_ text: String) -> Int {
            let start = texts.count
            texts += text.utf8.filter { $0 != 0 }.map { CChar(bitPattern: $0) } + [0]
            return start
        }
        var next: (any Error)? = error
        while let one = next, errors.count < 8 {
            let bridged = one as NSError
            errors.append((add(bridged.domain), add(description(of: one, bridged)), bridged.code))
            let all = bridged.userInfo["NSMultipleUnderlyingErrorsKey"] as? [any Error]
            next = bridged.userInfo[NSUnderlyingErrorKey] as? any Error ?? all?.first
        }
        let isCocoa = type(of: error) is NSError.Type
        let language = isCocoa ? CORONER_EXCEPTION_LANGUAGE_OBJ_C : CORONER_EXCEPTION_LANGUAGE_SWIFT
        // Not with a closure, which would be a frame in the report.
        let memory = UnsafeMutableBufferPointer<CChar>.allocate(capacity: texts.count)
        defer { memory.deallocate() }
        _ = memory.initialize(from: texts)
        let start = UnsafePointer(memory.baseAddress!)
        let chain = errors.map { error in
            coroner_coded_error(domain: start + error.domain, code: Int64(error.code), description: start + error.description)
        }
        try check(coroner_report_coded_error(language, chain, chain.count))
    }

    /// Counts a handled error for release health.
    public static func countError() throws {
        try check(coroner_count_error())
    }

    /// Returns the localized description if the error has its own, otherwise the value as text, which contains more.
    private static func description(of error: any Error, _ bridged: NSError) -> String {
        if type(of: error) is NSError.Type || error is any LocalizedError || error is CocoaError || error is POSIXError
            || error is URLError
        {
            return bridged.localizedDescription
        }
        return String(describing: error)
    }
}
