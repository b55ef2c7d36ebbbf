//! Options from the environment variables of OpenTelemetry SDKs.
//!
//! Sources: *OpenTelemetry Protocol Exporter* and *Environment Variable Specification*.

use std::time::Duration;

use coroner_process::secure_execution::is_secure;

use crate::options::Options;

/// An unsupported or invalid environment variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A protocol other than `http/protobuf`.
    #[error("{variable}: unsupported protocol `{value}`; expected `http/protobuf`")]
    Protocol {
        /// The variable's name.
        variable: &'static str,
        /// The variable's value.
        value: String,
    },
    /// A value that can't be parsed. Contains only the variable's name, because the value may be a
    /// secret.
    #[error("{0} can't be read")]
    Value(&'static str),
}

impl Options {
    /// Returns the options from the environment; `None` if no endpoint is set, or
    /// `OTEL_SDK_DISABLED` is `true`.
    ///
    /// The endpoint is `OTEL_EXPORTER_OTLP_LOGS_ENDPOINT`, used as it is, or
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`, to which `v1/logs` is appended. With either prefix,
    /// `…_HEADERS`, `…_TIMEOUT`, `…_COMPRESSION`, `…_CERTIFICATE` and `…_PROTOCOL` are used; also
    /// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`. Without an endpoint, crash data is not
    /// sent anywhere. A set-user-ID program, whose caller must not choose who gets its reports,
    /// ignores all of them.
    ///
    /// # Errors
    /// [`EnvironmentError`] if a variable is invalid or requests something unsupported.
    pub fn from_env() -> Result<Option<Self>, EnvironmentError> {
        Self::from_variables(trusted_variable)
    }

    /// Returns the options for the server at `endpoint`; the rest is from the environment.
    ///
    /// `v1/logs` is appended to `endpoint`. `headers` have the form of `OTEL_EXPORTER_OTLP_HEADERS`
    /// (`name=value,name=value`, percent-encoded) and replace that variable.
    ///
    /// # Errors
    /// [`EnvironmentError`], as for [`from_env`](Self::from_env).
    pub fn for_endpoint(endpoint: &str, headers: Option<&str>) -> Result<Self, EnvironmentError> {
        let options = Self::from_variables(|name| match name {
            "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(endpoint.to_owned()),
            // An explicit server overrides these variables.
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT" | "OTEL_SDK_DISABLED" => None,
            "OTEL_EXPORTER_OTLP_LOGS_HEADERS" if headers.is_some() => None,
            "OTEL_EXPORTER_OTLP_HEADERS" if headers.is_some() => headers.map(ToOwned::to_owned),
            _ => trusted_variable(name),
        })?;
        options.ok_or(EnvironmentError::Value("the endpoint"))
    }

    /// Like [`from_env`](Self::from_env), with variables from the function `variable`.
    ///
    /// # Errors
    /// [`EnvironmentError`], as for [`from_env`](Self::from_env).
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, EnvironmentError> {
        // An empty value means that the variable is not set.
        let get = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        // The variable for logs, else the one for all signals.
        let either = |of_logs: &'static str, of_all: &'static str| {
            get(of_logs).map(|value| (of_logs, value)).or_else(|| get(of_all).map(|value| (of_all, value)))
        };
        if get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let of_logs = get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT").map(Options::with_logs_url);
        let options = of_logs.or_else(|| get("OTEL_EXPORTER_OTLP_ENDPOINT").map(|endpoint| Options::new(&endpoint)));
        let Some(mut options) = options else { return Ok(None) };
        if let Some((variable, value)) = either("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
            && value != "http/protobuf"
        {
            return Err(EnvironmentError::Protocol { variable, value });
        }
        if let Some((variable, value)) = either("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS") {
            options.headers = pairs(&value).ok_or(EnvironmentError::Value(variable))?;
        }
        if let Some((variable, value)) = either("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT") {
            let milliseconds = value.parse().map_err(|_| EnvironmentError::Value(variable))?;
            options.transport.timeout = Duration::from_millis(milliseconds);
        }
        if let Some((variable, value)) = either("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION")
        {
            options.gzip = match value.as_str() {
                "gzip" => true,
                "none" => false,
                _ => return Err(EnvironmentError::Value(variable)),
            };
        }
        let file = either("OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE");
        options.transport.ca_file = file.map(|(_, path)| path.into());
        if let Some(value) = get("OTEL_RESOURCE_ATTRIBUTES") {
            let error = EnvironmentError::Value("OTEL_RESOURCE_ATTRIBUTES");
            options.labels.resource = pairs(&value).ok_or(error)?;
        }
        options.labels.service_name = get("OTEL_SERVICE_NAME");
        Ok(Some(options))
    }
}

/// Returns an environment variable of a program that trusts its caller.
fn trusted_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|_| !is_secure())
}

/// Parses `key1=value1,key2=value2` with percent-encoded values (W3C Baggage).
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    members
        .map(|member| {
            let (key, value) = member.split_once('=')?;
            let key = percent_decoded(key.trim())?;
            (!key.is_empty()).then_some((key, percent_decoded(value.trim())?))
        })
        .collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok().filter(|digits| !digits.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}
