import CCoroner

// What the app says of itself, for the next report. Each call costs about a microsecond; what it sets is there even if the process is killed in the next moment.
extension Coroner {
    /// How grave something is.
    public enum Level: Int32, Sendable {
        case debug = 1, info, warning, error, fatal
    }

    /// Sets a tag, by which reports can be searched; `nil` removes it.
    public static func setTag(_ key: String, _ value: String?) throws {
        try text(key) { key in
            try text(value) { value in try check(value == nil ? coroner_remove_tag(key) : coroner_set_tag(key, value)) }
        }
    }

    /// Sets who is using the app, as the app knows them; `nil` for nobody.
    public static func setUser(id: String?, name: String? = nil, email: String? = nil) throws {
        guard let id else { return try check(coroner_set_user_id(nil)) }
        try text(id) { id in
            try text(name) { name in try text(email) { email in try check(coroner_set_user(id, name, email)) } }
        }
    }

    /// Sets a context: something that belongs together, as a JSON object such as `{"pages": 3}`; `nil` removes it.
    public static func setContext(_ name: String, json: String?) throws {
        try text(name) { name in
            try text(json) { json in
                try check(json == nil ? coroner_remove_context(name) : coroner_set_context(name, json))
            }
        }
    }

    /// Sets a value that is only shown, as JSON; `nil` removes it.
    public static func setExtra(_ key: String, json: String?) throws {
        try text(key) { key in
            try text(json) { json in try check(json == nil ? coroner_remove_extra(key) : coroner_set_extra(key, json)) }
        }
    }

    /// Sets how grave the app takes its events to be.
    public static func setLevel(_ level: Level) throws {
        try check(coroner_set_level(level.rawValue))
    }

    /// Notes what a feature flag was evaluated to.
    public static func setFlag(_ flag: String, _ result: Bool) throws {
        try text(flag) { try check(coroner_set_flag($0, result)) }
    }

    /// Sets which trace the app is at work on, 32 and 16 hexadecimal digits; `nil` for none.
    public static func setTrace(id: String?, span: String?) throws {
        try text(id) { id in try text(span) { span in try check(coroner_set_trace(id, span)) } }
    }

    /// Says whether the app is in front.
    public static func setForeground(_ isForeground: Bool) throws {
        try check(coroner_set_foreground(isForeground))
    }

    /// Leaves a breadcrumb: something that happened. The last ones before a crash are in its report.
    public static func addBreadcrumb(_ message: String, category: String? = nil, level: Level = .info) throws {
        try text(message) { message in
            try text(category) { category in try check(coroner_add_breadcrumb(category, message, level.rawValue)) }
        }
    }

    /// Declares a file that goes with this run's reports under `name`, as it is when a report is sent; a path of `nil` takes it back.
    public static func addAttachment(_ name: String, path: String?, contentType: String? = nil) throws {
        try text(name) { name in
            try text(path) { path in
                try text(contentType) { type in try check(coroner_add_attachment(name, path, type)) }
            }
        }
    }

    /// Delivers what a user says, most often of the last crash.
    public static func feedback(
        _ message: String, of eventID: String? = nil, name: String? = nil, email: String? = nil
    ) throws {
        try text(message) { message in
            try text(eventID) { id in
                try text(name) { name in
                    try text(email) { email in try check(coroner_feedback(id, message, name, email)) }
                }
            }
        }
    }
}
