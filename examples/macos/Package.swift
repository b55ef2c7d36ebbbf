// swift-tools-version:5.9
import PackageDescription

// Where this repository is, with Coroner's headers and the library that `run.sh` has cargo build.
let root = Context.packageDirectory + "/../.."
let headers = "\(root)/crates/bindings/ffi/include"

let package = Package(
    name: "Shop",
    platforms: [.macOS(.v12)],
    targets: [
        .target(name: "CFaults", cSettings: [.unsafeFlags(["-I\(headers)"])]),
        .executableTarget(
            name: "Shop",
            dependencies: ["CFaults"],
            swiftSettings: [.unsafeFlags(["-Xcc", "-I\(headers)"])],
            linkerSettings: [.unsafeFlags(["-L\(root)/target/release", "-Xlinker", "-force_load", "-Xlinker", "\(root)/target/release/libcoroner_ffi.a"])]
        ),
    ]
)
