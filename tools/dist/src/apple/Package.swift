// swift-tools-version:5.9
import PackageDescription

// What the libraries were built with, beside the defaults.
let features: [SwiftSetting] = []

let package = Package(
    name: "Coroner",
    platforms: [.macOS(.v11), .iOS(.v13), .macCatalyst(.v14)],
    products: [.library(name: "Coroner", targets: ["Coroner"])],
    targets: [
        .binaryTarget(name: "CCoroner", path: "CCoroner.xcframework"),
        // A static library has no bundle of its own: the privacy manifest is a resource of this target.
        .target(
            name: "Coroner", dependencies: ["CCoroner"], resources: [.copy("PrivacyInfo.xcprivacy")],
            swiftSettings: features),
    ]
)
