import CCoroner

extension Coroner {
    /// The stack of a thread at one moment, innermost frame first.
    public final class Backtrace: @unchecked Sendable {
        /// A frame with its names.
        public struct Frame: Sendable {
            /// After a call, but for the innermost frame of another thread.
            public let address: UInt64
            /// The file name of the image that it is in.
            public let image: String?
            /// Relative to the image's first byte.
            public let imageOffset: UInt64
            /// The function, demangled.
            public let function: String?
            /// Relative to the function's first byte.
            public let functionOffset: UInt64
            /// Whether it is the app's own code.
            public let isInApp: Bool
        }

        /// What to capture.
        public struct Options: Sendable {
            /// The greatest number of frames, at most 128.
            public var depth: UInt32 = 128
            /// Frames left out at the innermost end.
            public var skip: UInt32 = 0
            /// Only frames of the app's own images.
            public var inAppOnly = false
            /// Whether a walk that comes to an async function goes on to those that wait for it.
            public var followsAsync = true

            public init() {}

            var made: coroner_capture_options {
                var made = coroner_capture_options()
                made.size = MemoryLayout<coroner_capture_options>.size
                made.depth = depth
                made.skip = skip
                made.in_app_only = inAppOnly
                made.without_swift_async = !followsAsync
                return made
            }
        }

        private var captured: coroner_backtrace

        private init(_ captured: coroner_backtrace) {
            self.captured = captured
        }

        deinit {
            coroner_backtrace_release(&captured)
        }

        /// The calling thread's stack.
        @inline(never)
        public static func current(_ options: Options = Options()) throws -> Backtrace {
            var captured = coroner_backtrace()
            var made = options.made
            // This function is no frame of the app's.
            made.skip += 1
            try Coroner.check(coroner_backtrace_current(&captured, &made))
            return Backtrace(captured)
        }

        /// The stack of another thread of this process, by what `threadID` was there.
        public static func of(thread: UInt64, _ options: Options = Options()) throws -> Backtrace {
            var captured = coroner_backtrace()
            var made = options.made
            try Coroner.check(coroner_backtrace_of_thread(&captured, thread, &made))
            return Backtrace(captured)
        }

        /// The addresses, innermost first.
        public var addresses: [UInt64] {
            var count = 0
            guard let first = coroner_backtrace_addresses(&captured, &count) else { return [] }
            return Array(UnsafeBufferPointer(start: first, count: count))
        }

        /// A number that identical stacks share, in this run.
        public var hash: UInt64 { coroner_backtrace_hash(&captured) }

        /// Whether there were more frames.
        public var isTruncated: Bool { coroner_backtrace_is_truncated(&captured) }

        /// The frames with their names. This allocates, and may read files.
        public func frames() throws -> [Frame] {
            var frames: [Frame] = []
            try withUnsafeMutablePointer(to: &frames) { frames in
                let each: coroner_each_frame = { context, frame in
                    guard let frame = frame?.pointee else { return }
                    context!.assumingMemoryBound(to: [Frame].self).pointee.append(
                        Frame(
                            address: frame.address, image: frame.image.map { String(cString: $0) },
                            imageOffset: frame.image_offset, function: frame.function.map { String(cString: $0) },
                            functionOffset: frame.function_offset, isInApp: frame.in_app))
                }
                try Coroner.check(coroner_backtrace_names(&captured, each, frames))
            }
            return frames
        }
    }

    /// The calling thread, for `Backtrace.of(thread:)`.
    public static var threadID: UInt64 { coroner_thread_id() }
}
