// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "Coroner",
    platforms: [.macOS(.v11), .iOS(.v13), .macCatalyst(.v14)],
    products: [.library(name: "Coroner", targets: ["Coroner", "CoronerPrivacy"])],
    targets: [
        .binaryTarget(name: "Coroner", path: "Coroner.xcframework"),
        // A static library has no bundle of its own: the privacy manifest is a resource of this target.
        .target(name: "CoronerPrivacy", resources: [.copy("PrivacyInfo.xcprivacy")]),
    ]
)
