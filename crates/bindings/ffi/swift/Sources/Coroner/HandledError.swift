import CCoroner
import Foundation

extension Coroner {
    /// Reports an error that was handled, with the errors below it as its causes, and the stacks of all threads. The app goes on. Throws `.full` if there were
    /// more in an hour than `Configuration.Limits.reportsPerHour`.
    @inline(never)
    public static func report(_ error: any Error) throws {
        // All texts lie in one piece of memory: domain and description of each error in turn.
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
        // No closure, which would be a frame of the report.
        let memory = UnsafeMutableBufferPointer<CChar>.allocate(capacity: texts.count)
        defer { memory.deallocate() }
        _ = memory.initialize(from: texts)
        let start = UnsafePointer(memory.baseAddress!)
        let chain = errors.map { error in
            coroner_coded_error(domain: start + error.domain, code: Int64(error.code), description: start + error.description)
        }
        try check(coroner_report_coded_error(Int32(language.rawValue), chain, chain.count))
    }

    /// Counts an error that the app got over, for release health.
    public static func countError() throws {
        try check(coroner_count_error())
    }

    /// Of Swift's own error types the value says most; those that know how to say it to a user say it.
    private static func description(of error: any Error, _ bridged: NSError) -> String {
        if type(of: error) is NSError.Type || error is any LocalizedError || error is CocoaError || error is POSIXError
            || error is URLError
        {
            return bridged.localizedDescription
        }
        return String(describing: error)
    }
}
