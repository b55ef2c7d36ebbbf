/**
 * @file
 * Coroner for Objective-C and, through bridging, Swift: functions that take Foundation's types.
 *
 *     #import <coroner_apple.h>
 *
 *     NSError *error;
 *     if (![data writeToURL:url options:0 error:&error])
 *         coroner_report_nserror(error);
 *
 * In Swift, with this file in the bridging header or a module map:
 * `coroner_report_nserror(error as NSError)`.
 *
 * MetricKit reports crashes that no process can record. Pass its payloads on from the app's
 * `MXMetricManagerSubscriber`; the library must have the feature `system-reports`:
 *
 *     - (void)didReceiveDiagnosticPayloads:(NSArray<MXDiagnosticPayload *> *)payloads
 *     {
 *         coroner_add_metric_kit_payloads(payloads);
 *     }
 */
#ifndef CORONER_APPLE_H
#define CORONER_APPLE_H

#include "coroner.h"

/* In C this file is the same as `coroner.h`. */
#ifdef __OBJC__
#import <Foundation/Foundation.h>

/// Maximum number of errors in a chain; further ones are not reported.
#define CORONER_MAX_ERRORS 8

/// Reports a handled error, with its underlying errors as causes.
///
/// The causes are those under `NSUnderlyingErrorKey` or, if there is none, the first under
/// `NSMultipleUnderlyingErrorsKey`. The report contains each error's domain, code and description.
/// Otherwise like coroner_report_coded_error. For nil, nothing is reported.
static inline coroner_status coroner_report_nserror(NSError *_Nullable error)
{
    coroner_coded_error chain[CORONER_MAX_ERRORS];
    size_t count = 0;
    for (NSError *next = error; next != nil && count < CORONER_MAX_ERRORS;) {
        chain[count].domain = next.domain.UTF8String;
        chain[count].code = next.code;
        chain[count].description = next.localizedDescription.UTF8String;
        ++count;
        id below = next.userInfo[NSUnderlyingErrorKey];
        if (below == nil) {
            /* The value of NSMultipleUnderlyingErrorsKey, a symbol of macOS 11.3 and iOS 14.5. */
            id all = next.userInfo[@"NSMultipleUnderlyingErrorsKey"];
            below = [all isKindOfClass:[NSArray class]] ? [(NSArray *)all firstObject] : nil;
        }
        next = [below isKindOfClass:[NSError class]] ? (NSError *)below : nil;
    }
    return coroner_report_coded_error(CORONER_EXCEPTION_LANGUAGE_OBJ_C, chain, count);
}

/* Not on tvOS and watchOS. On macOS the diagnostics need version 12. */
#if __has_include(<MetricKit/MetricKit.h>)
#import <MetricKit/MetricKit.h>

/// Adds MetricKit payloads as coroner_add_metric_kit_payload does.
///
/// For the payloads that a subscriber receives and, after coroner_install, for MXMetricManager's
/// `pastDiagnosticPayloads`. A rejected payload doesn't prevent the others from being added; the
/// function returns the first failure's status.
API_AVAILABLE(ios(14.0), macos(12.0))
static inline coroner_status coroner_add_metric_kit_payloads(NSArray<MXDiagnosticPayload *> *_Nullable payloads)
{
    coroner_status status = CORONER_STATUS_OK;
    for (MXDiagnosticPayload *payload in payloads) {
        NSData *json = [payload JSONRepresentation];
        coroner_status added = coroner_add_metric_kit_payload((const uint8_t *)json.bytes, json.length);
        if (status == CORONER_STATUS_OK)
            status = added;
    }
    return status;
}
#endif

#endif
#endif
