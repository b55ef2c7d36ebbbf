import CCoroner

// The scope: data that the app adds to its reports. Each call costs about a microsecond, and its effect survives even if the process is killed right after it.
extension Coroner {
    /// The severity of a breadcrumb or of the app's events.
    public enum Level: UInt32, Sendable {
        case debug = 1, info, warning, error, fatal

        var c: coroner_level { coroner_level(rawValue) }
    }

    /// Sets a tag, a short string by which reports can be searched; `nil` removes it.
    public static func setTag(_ key: String, _ value: String?) throws {
        try text(key) { key in
            try text(value) { value in try check(value == nil ? coroner_remove_tag(key) : coroner_set_tag(key, value)) }
        }
    }

    /// Sets the app's current user; a `nil` id for no user.
    public static func setUser(id: String?, name: String? = nil, email: String? = nil) throws {
        guard let id else { return try check(coroner_set_user_id(nil)) }
        try text(id) { id in
            try text(name) { name in try text(email) { email in try check(coroner_set_user(id, name, email)) } }
        }
    }

    /// Sets a context: related data as a JSON object such as `{"pages": 3}`; `nil` removes it.
    public static func setContext(_ name: String, json: String?) throws {
        try text(name) { name in
            try text(json) { json in
                try check(json == nil ? coroner_remove_context(name) : coroner_set_context(name, json))
            }
        }
    }

    /// Sets an extra value, as JSON, that is displayed but not searchable; `nil` removes it.
    public static func setExtra(_ key: String, json: String?) throws {
        try text(key) { key in
            try text(json) { json in try check(json == nil ? coroner_remove_extra(key) : coroner_set_extra(key, json)) }
        }
    }

    /// Sets the severity of the app's events, instead of the one that fits the crash.
    public static func setLevel(_ level: Level) throws {
        try check(coroner_set_level(level.c))
    }

    /// Records the result of evaluating a feature flag.
    public static func setFlag(_ flag: String, _ result: Bool) throws {
        try text(flag) { try check(coroner_set_flag($0, result)) }
    }

    /// Sets the app's current trace by its ids of 32 and 16 hexadecimal digits; `nil` for both removes it.
    public static func setTrace(id: String?, span: String?) throws {
        try text(id) { id in try text(span) { span in try check(coroner_set_trace(id, span)) } }
    }

    /// Sets whether the app is in the foreground.
    public static func setForeground(_ isForeground: Bool) throws {
        try check(coroner_set_foreground(isForeground))
    }

    /// Adds a breadcrumb, an event such as "opened the document". A report contains the most recent ones.
    public static func addBreadcrumb(_ message: String, category: String? = nil, level: Level = .info) throws {
        try text(message) { message in
            try text(category) { category in try check(coroner_add_breadcrumb(category, message, level.c)) }
        }
    }

    /// Adds a file to this run's reports under `name`, read when a report is sent; a `nil` path removes it.
    public static func addAttachment(_ name: String, path: String?, contentType: String? = nil) throws {
        try text(name) { name in
            try text(path) { path in
                try text(contentType) { type in try check(coroner_add_attachment(name, path, type)) }
            }
        }
    }

    /// Delivers user feedback, usually about the last crash.
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
