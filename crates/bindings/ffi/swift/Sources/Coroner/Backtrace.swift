import CCoroner

extension Coroner {
    /// A thread's stack at one moment, innermost frame first.
    public final class Backtrace: @unchecked Sendable {
        /// A frame with its names.
        public struct Frame: Sendable {
            /// The frame's address: a return address, except in another thread's innermost frame.
            public let address: UInt64
            /// The file name of the image that contains the address.
            public let image: String?
            /// The address relative to the image's first byte.
            public let imageOffset: UInt64
            /// The demangled function name.
            public let function: String?
            /// The address relative to the function's first byte.
            public let functionOffset: UInt64
            /// Whether the frame is the app's own code.
            public let isInApp: Bool
        }

        /// Capture options.
        public struct Options: Sendable {
            /// Maximum number of frames, at most 128.
            public var depth: UInt32 = 128
            /// Number of innermost frames to leave out.
            public var skip: UInt32 = 0
            /// Keep only frames in the app's own images.
            public var inAppOnly = false
            /// At an async function, continue to the functions that await it rather than to its executor.
            public var followsAsync = true

            public init() {}

            var c: coroner_capture_options {
                var options = coroner_capture_options()
                options.size = MemoryLayout<coroner_capture_options>.size
                options.depth = depth
                options.skip = skip
                options.in_app_only = inAppOnly
                options.without_swift_async = !followsAsync
                return options
            }
        }

        private var captured: coroner_backtrace

        private init(_ captured: coroner_backtrace) {
            self.captured = captured
        }

        deinit {
            coroner_backtrace_release(&captured)
        }

        /// Captures the calling thread's stack.
        @inline(never)
        public static func current(_ options: Options = Options()) throws -> Backtrace {
            var captured = coroner_backtrace()
            var options = options.c
            // Leave out this function's frame.
            options.skip += 1
            try Coroner.check(coroner_backtrace_current(&captured, &options))
            return Backtrace(captured)
        }

        /// Captures the stack of another thread of this process. `thread` is the value of `threadID` on that thread.
        public static func of(thread: UInt64, _ options: Options = Options()) throws -> Backtrace {
            var captured = coroner_backtrace()
            var options = options.c
            try Coroner.check(coroner_backtrace_of_thread(&captured, thread, &options))
            return Backtrace(captured)
        }

        /// The addresses, innermost first.
        public var addresses: [UInt64] {
            var count = 0
            guard let first = coroner_backtrace_addresses(&captured, &count) else { return [] }
            return Array(UnsafeBufferPointer(start: first, count: count))
        }

        /// A hash of the stack. Identical stacks of one run have the same hash.
        public var hash: UInt64 { coroner_backtrace_hash(&captured) }

        /// Whether the stack has more frames than the requested maximum.
        public var isTruncated: Bool { coroner_backtrace_is_truncated(&captured) }

        /// Returns the frames with their names. It allocates and may read files.
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

    /// The calling thread's id, for `Backtrace.of(thread:)`.
    public static var threadID: UInt64 { coroner_thread_id() }
}
