//! Java exceptions: uncaught ones, and those that the app reports.

use coroner::ManagedException;
use jni::errors::LogErrorAndDefault;
use jni::objects::{JClass, JString};
use jni::sys::jboolean;
use jni::{Env, NativeMethod, native_method};

use super::{Failure, optional};

const _: NativeMethod = native_method! {
    java_type = "dev.coroner.Coroner",
    error_policy = LogErrorAndDefault,
    static extern fn native_exception(
        kind: JString, message: JString, stack_trace: JString, is_caught: jboolean,
    ) -> jboolean,
};

fn native_exception(
    env: &mut Env<'_>,
    _: JClass<'_>,
    kind: JString<'_>,
    message: JString<'_>,
    stack_trace: JString<'_>,
    is_caught: jboolean,
) -> Result<jboolean, Failure> {
    let kind = kind.try_to_string(env)?;
    let message = optional(env, &message)?.unwrap_or_default();
    let stack_trace = optional(env, &stack_trace)?.unwrap_or_default();
    let exception = ManagedException::new(&kind, &message, &stack_trace);
    if is_caught {
        Ok(coroner::report_managed_exception(&exception))
    } else {
        Ok(coroner::report_uncaught_exception(&exception))
    }
}
