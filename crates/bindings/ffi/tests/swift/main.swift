// A Swift app. The first argument is its store, the second its action.

import Coroner
import Foundation

enum ShopError: Error {
    case closed(until: Int)
}

@inline(never)
func orders(_ count: Int) -> Int {
    let orders = [1, 2, 3]
    return orders[count + 5]
}

@inline(never)
func close() -> Never {
    fatalError("the shop is closed")
}

@inline(never)
func sum(_ upTo: Int) -> Int {
    upTo == 0 ? 0 : sum(upTo - 1) + upTo % 7
}

@inline(never)
func total(_ at: UnsafePointer<Int>) -> Int {
    at.pointee + 1
}

func leaf() async -> Int {
    await Task.yield()
    return orders(CommandLine.arguments.count)
}

func middle() async -> Int {
    await leaf() + 1
}

final class Count: @unchecked Sendable {
    private let lock = NSLock()
    private var value = 0
    func add() { lock.withLock { value += 1 } }
    var now: Int { lock.withLock { value } }
}

let arguments = CommandLine.arguments
let delivered = Count()
var configuration = Coroner.Configuration(app: "com.example.shop")
configuration.version = "1.0.0"
configuration.environment = "test"
configuration.storeDirectory = arguments[1]
configuration.crashes.stackMemory = 4096
configuration.keepOutput = true
configuration.limits.reportsPerHour = 2
configuration.delivery.beforeDeliver = { json in !json.contains("keep this back") }
configuration.delivery.onCrashedLastRun = { id in print("crashed last run: \(id == nil ? "no report" : "a report")") }
configuration.sinks = [
    .folder(arguments[1] + "/given"),
    .custom("counts") { report in
        precondition(report.eventID.count == 32 && report.json.hasPrefix("{") && !report.raw.isEmpty)
        delivered.add()
        return .taken
    },
]
try Coroner.install(configuration)
do {
    try Coroner.install(configuration)
} catch let failure as Coroner.Failure {
    precondition(failure.kind == .alreadyInstalled && !failure.reason.isEmpty)
}
try Coroner.setTag("shelf", "upper")
try Coroner.setUser(id: "7", name: "Ada")
try Coroner.setContext("order", json: "{\"pages\": 3}")
try Coroner.addBreadcrumb("opened the shop", category: "ui")
do {
    try Coroner.setTag("shelf\0", "x")
    preconditionFailure("a text with a NUL was accepted")
} catch let failure as Coroner.Failure {
    precondition(failure.kind == .invalidArgument)
}

switch arguments.dropFirst(2).first {
case "null":
    print(total(UnsafePointer(bitPattern: 8 * arguments.count)!))
case "fatal-error":
    close()
case "index":
    print(orders(arguments.count))
case "overflow":
    print(sum(1 << 40))
case "async":
    print(await Task { await middle() }.value)
case "thread":
    Thread.detachNewThread { print(orders(arguments.count)) }
    sleep(10)
case "keep":
    try Coroner.setTag("note", "keep this back")
    close()
case "kill":
    kill(getpid(), SIGKILL)
case "error":
    let below = NSError(domain: "Disk", code: 28, userInfo: [NSLocalizedDescriptionKey: "no space"])
    try Coroner.report(NSError(domain: "Shop", code: 4, userInfo: [NSUnderlyingErrorKey: below]))
    try Coroner.report(ShopError.closed(until: 8))
    do {
        try Coroner.report(ShopError.closed(until: 9))
    } catch let failure as Coroner.Failure {
        print("third: \(failure.kind)")
    }
    try Coroner.flush(timeoutMilliseconds: 20_000)
    print("delivered: \(delivered.now)")
case "backtrace":
    let here = try Coroner.Backtrace.current()
    for frame in try here.frames() { print(frame.isInApp, frame.function ?? "-") }
    print(here.addresses.count, here.isTruncated, here.hash != 0)
default:
    try Coroner.flush(timeoutMilliseconds: 20_000)
    print("outcome: \(Coroner.lastRun!.outcome), report: \(Coroner.lastRun!.eventID?.count ?? 0), delivered: \(delivered.now)")
}
