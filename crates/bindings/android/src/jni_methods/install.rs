//! Installation, exit information about earlier processes, the last run's outcome, delivery.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use coroner::{Config, ExitInfo, OtlpSink, SentrySink};
use jni::errors::LogErrorAndDefault;
use jni::objects::{JByteArray, JClass, JString};
use jni::sys::{jboolean, jint, jlong};
use jni::{Env, NativeMethod, native_method};

use super::{Failure, installed, optional};

const _: [NativeMethod; 8] = [
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_is_known(store: JString, pid: jint, timestamp: jlong) -> jboolean,
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_add_exit_info(
            pid: jint, reason: jint, status: jint, importance: jint, timestamp: jlong, rss: jlong, pss: jlong,
            description: JString, trace: jbyte[],
        ),
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_install(
            app: JString, store: JString, version: JString, environment: JString, release: JString, dist: JString,
            dsn: JString, otlp: JString, otlp_headers: JString, require_consent: jboolean,
        ) -> jboolean,
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_set_device(
            manufacturer: JString, brand: JString, model: JString, build: JString, release: JString, api_level: jint,
        ),
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_last_outcome() -> JString,
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_last_event_id() -> JString,
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_set_consent(given: jboolean),
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_flush(timeout_ms: jlong) -> jboolean,
    },
];

/// The system's exit information about earlier processes, until install takes it.
static EXIT_INFOS: Mutex<Vec<ExitInfo>> = Mutex::new(Vec::new());
/// The sink that sends to Sentry, to pass the user's consent to it.
static SENTRY: Mutex<Option<SentrySink>> = Mutex::new(None);
/// The sink that sends over OTLP, to pass the user's consent to it.
static OTLP: Mutex<Option<OtlpSink>> = Mutex::new(None);

fn native_is_known(
    env: &mut Env<'_>,
    _: JClass<'_>,
    store: JString<'_>,
    pid: jint,
    timestamp: jlong,
) -> Result<jboolean, Failure> {
    let store = store.try_to_string(env)?;
    let mut info = ExitInfo::default();
    (info.pid, info.timestamp_ms) = (pid as u32, timestamp.max(0) as u64);
    Ok(info.is_known(Path::new(&store)))
}

#[expect(clippy::too_many_arguments, reason = "one for each getter of ApplicationExitInfo")]
fn native_add_exit_info(
    env: &mut Env<'_>,
    _: JClass<'_>,
    pid: jint,
    reason: jint,
    status: jint,
    importance: jint,
    timestamp: jlong,
    rss: jlong,
    pss: jlong,
    description: JString<'_>,
    trace: JByteArray<'_>,
) -> Result<(), Failure> {
    let mut info = ExitInfo::default();
    (info.pid, info.reason, info.status, info.importance) = (pid as u32, reason, status, importance);
    info.timestamp_ms = timestamp.max(0) as u64;
    (info.rss_kb, info.pss_kb) = (rss.max(0) as u64, pss.max(0) as u64);
    info.description = optional(env, &description)?.unwrap_or_default();
    info.trace = if trace.is_null() { Vec::new() } else { env.convert_byte_array(&trace)? };
    EXIT_INFOS.lock().unwrap_or_else(PoisonError::into_inner).push(info);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "one for each setting")]
fn native_install(
    env: &mut Env<'_>,
    _: JClass<'_>,
    app: JString<'_>,
    store: JString<'_>,
    version: JString<'_>,
    environment: JString<'_>,
    release: JString<'_>,
    dist: JString<'_>,
    dsn: JString<'_>,
    otlp: JString<'_>,
    otlp_headers: JString<'_>,
    require_consent: jboolean,
) -> Result<jboolean, Failure> {
    #[cfg(target_os = "android")]
    crate::logcat::install();
    let mut config = Config::new(app.try_to_string(env)?).store_dir(store.try_to_string(env)?);
    if let Some(version) = optional(env, &version)? {
        config = config.version(version);
    }
    if let Some(environment) = optional(env, &environment)? {
        config = config.environment(environment);
    }
    if let Some(release) = optional(env, &release)? {
        config = config.release(release);
    }
    if let Some(dist) = optional(env, &dist)? {
        config = config.dist(dist);
    }
    if let Some(dsn) = optional(env, &dsn)? {
        let sink = SentrySink::new(&dsn).map_err(|error| Failure::Dsn(error.to_string()))?;
        let sink = sink.options(|options| options.require_consent = require_consent);
        *SENTRY.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink.clone());
        config = config.sink(sink);
    }
    if let Some(endpoint) = optional(env, &otlp)? {
        let headers = optional(env, &otlp_headers)?;
        let options = coroner::otlp::Options::for_endpoint(&endpoint, headers.as_deref());
        let mut options = options.map_err(|error| Failure::Otlp(error.to_string()))?;
        options.require_consent = require_consent;
        let sink = OtlpSink::with_options(options);
        *OTLP.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink.clone());
        config = config.sink(sink);
    }
    let infos = std::mem::take(&mut *EXIT_INFOS.lock().unwrap_or_else(PoisonError::into_inner));
    coroner::install(infos.into_iter().fold(config, Config::system_report))?;
    Ok(true)
}

#[expect(clippy::too_many_arguments, reason = "one for each property of the device")]
fn native_set_device(
    env: &mut Env<'_>,
    _: JClass<'_>,
    manufacturer: JString<'_>,
    brand: JString<'_>,
    model: JString<'_>,
    build: JString<'_>,
    release: JString<'_>,
    api_level: jint,
) -> Result<(), Failure> {
    // The keys are those of Sentry's contexts.
    let device = serde_json::json!({
        "manufacturer": optional(env, &manufacturer)?,
        "brand": optional(env, &brand)?,
        "model": optional(env, &model)?,
        "model_id": optional(env, &build)?,
    });
    coroner::set_context("device", &device)?;
    let android = serde_json::json!({ "release": optional(env, &release)?, "api_level": api_level });
    Ok(coroner::set_context("android", &android)?)
}

fn native_last_outcome<'local>(env: &mut Env<'local>, _: JClass<'local>) -> Result<JString<'local>, Failure> {
    let outcome = installed()?.last_run().outcome;
    // The same name as in the store, such as `clean_exit`.
    let name = serde_json::to_value(outcome)?;
    Ok(env.new_string(name.as_str().unwrap_or_default())?)
}

fn native_last_event_id<'local>(env: &mut Env<'local>, _: JClass<'local>) -> Result<JString<'local>, Failure> {
    match installed()?.last_run().event_id {
        Some(id) => Ok(env.new_string(id.to_string())?),
        None => Ok(JString::null()),
    }
}

fn native_set_consent(_: &mut Env<'_>, _: JClass<'_>, given: jboolean) -> Result<(), Failure> {
    let sentry = SENTRY.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let otlp = OTLP.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // All sinks are updated before the first failure is returned.
    let results = [sentry.map(|sink| sink.set_consent(given)), otlp.map(|sink| sink.set_consent(given))];
    results.into_iter().flatten().collect::<Result<(), _>>().map_err(Failure::from)
}

fn native_flush(_: &mut Env<'_>, _: JClass<'_>, timeout_ms: jlong) -> Result<jboolean, Failure> {
    Ok(installed()?.flush(Duration::from_millis(timeout_ms.max(0) as u64)))
}
