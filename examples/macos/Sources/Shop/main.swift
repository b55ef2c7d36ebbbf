// An app in Swift and C with Coroner: each argument is a way to die, or an error that is handled. Without one it says how the last run ended.

import CFaults
import Foundation
import MetricKit

final class ShopOrder: NSObject {
    @objc dynamic func total() -> Int { 7 }
}

enum ShopError: Error {
    case closed(until: Int)
}

/// Reports an error that was handled, with the errors below it. Of Swift's own errors the description is the value itself.
func report(_ error: Error) {
    if Swift.type(of: error) == NSError.self || error is CocoaError || error is POSIXError {
        coroner_report_nserror(error as NSError)
        return
    }
    let bridged = error as NSError
    _ = String(describing: error).withCString { description in
        bridged.domain.withCString { domain in
            var one = coroner_coded_error(domain: domain, code: Int64(bridged.code), description: description)
            return coroner_report_coded_error(CORONER_EXCEPTION_LANGUAGE_SWIFT, &one, 1)
        }
    }
}

let store = ProcessInfo.processInfo.environment["SHOP_STORE"] ?? NSTemporaryDirectory() + "shop-coroner"
let config = coroner_config_new("com.example.shop")
coroner_config_set_version(config, "1.0.0")
coroner_config_set_store_dir(config, store)
coroner_config_set_zombies(config, true)
coroner_config_set_run_id_thread(config, true)
if coroner_install(config) != CORONER_STATUS_OK {
    print("crashes will not be reported: \(String(cString: coroner_last_error()))")
}

/// Hands over what the system says of deaths that no process can record: kills by the watchdog, for memory, by the code signature.
final class Diagnostics: NSObject, MXMetricManagerSubscriber {
    func didReceive(_ payloads: [MXDiagnosticPayload]) {
        if coroner_add_metric_kit_payloads(payloads) != CORONER_STATUS_OK {
            print("diagnostics that can't be taken: \(String(cString: coroner_last_error()))")
        }
    }
}

let diagnostics = Diagnostics()
MXMetricManager.shared.add(diagnostics)

let way = CommandLine.arguments.dropFirst().first
switch way {
case "null":
    print(total_of(nil))
case "overflow":
    print(sum_up_to(1 << 40))
case "abort":
    abort()
case "fatal-error":
    fatalError("the shop is closed")
case "index":
    let orders = [1, 2, 3]
    print(orders[CommandLine.arguments.count + 5])
case "exception":
    NSException(name: .rangeException, reason: "no order 7", userInfo: ["order": 7]).raise()
case "zombie":
    let order = Unmanaged.passRetained(ShopOrder())
    let raw = order.toOpaque()
    order.release()
    // What comes into its place is no object.
    memset(raw, 0x55, 16)
    _ = Unmanaged<ShopOrder>.fromOpaque(raw).takeUnretainedValue().perform(#selector(ShopOrder.total))
case "kill":
    kill(getpid(), SIGKILL)
case "error":
    do {
        _ = try Data(contentsOf: URL(fileURLWithPath: "/no/such/file"))
    } catch {
        report(error)
    }
    report(ShopError.closed(until: 8))
    coroner_flush(5000)
    print("two errors were reported")
default:
    // Deliver first: a sink stores the report of the last run.
    coroner_flush(5000)
    var last = coroner_last_run_info()
    last.size = MemoryLayout<coroner_last_run_info>.size
    if coroner_last_run(&last) == CORONER_STATUS_OK {
        print("outcome of the last run: \(last.outcome.rawValue)")
    }
}
