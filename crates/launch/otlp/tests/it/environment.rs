//! OpenTelemetry's environment variables.

use std::time::Duration;

use coroner_otlp::{EnvironmentError, Options};

fn options(variables: &[(&str, &str)]) -> Result<Option<Options>, EnvironmentError> {
    Options::from_variables(|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

#[test]
fn without_an_endpoint_there_is_no_client() {
    assert!(options(&[]).unwrap().is_none());
    assert!(options(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
    assert!(options(&[ENDPOINT, ("OTEL_SDK_DISABLED", "True")]).unwrap().is_none());
}

#[test]
fn the_logs_endpoint_is_used_as_is_and_the_general_one_gets_a_path() {
    let url = |variables: &[(&str, &str)]| options(variables).unwrap().unwrap().logs_url;
    assert_eq!(url(&[ENDPOINT]), "http://collector:4318/v1/logs");
    assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://host/mine/")]), "http://host/mine/v1/logs");
    let of_logs = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "https://logs.example.com/in");
    assert_eq!(url(&[ENDPOINT, of_logs]), "https://logs.example.com/in");
}

#[test]
fn variables_for_logs_override_those_for_all_signals() {
    let printed = options(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20YQ%3D%3D, x-tenant = 7 ,"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/ca.pem"),
        ("OTEL_SERVICE_NAME", "paint"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=studio,service.name=other"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf"),
    ]);
    let printed = printed.unwrap().unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(printed.headers, [pair("Authorization", "Basic YQ=="), pair("x-tenant", "7")]);
    assert_eq!((printed.transport.timeout, printed.gzip), (Duration::from_millis(1500), false));
    assert_eq!(printed.transport.ca_file.unwrap().to_str(), Some("/etc/ca.pem"));
    assert_eq!(printed.labels.service_name.as_deref(), Some("paint"));
    assert_eq!(printed.labels.resource, [pair("service.namespace", "studio"), pair("service.name", "other")]);
    let of_logs =
        options(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_HEADERS", "a=1"), ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "b=2")]);
    assert_eq!(of_logs.unwrap().unwrap().headers, [pair("b", "2")]);
}

#[test]
fn an_invalid_variable_is_an_error_without_secrets() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "key=hunter2%4"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "key=hunter2%+1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "key=hunter2%ff"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=hunter2"),
    ] {
        let error = options(&[ENDPOINT, (name, value)]).expect_err(value).to_string();
        assert!(error.contains(name) && !error.contains("hunter2"), "{error}");
    }
}
