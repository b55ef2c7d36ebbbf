/*
 * Coroner for Objective-C, and for Swift by way of it: what `coroner.h` has no types for.
 *
 *     #import <coroner_apple.h>
 *
 *     NSError *error;
 *     if (![data writeToURL:url options:0 error:&error])
 *         coroner_report_nserror(error);
 *
 * In Swift (with this file in the bridging header or a module map): `coroner_report_nserror(error as NSError)`.
 *
 * What MetricKit says of crashes that no process can record, from the app's subscriber (`MXMetricManagerSubscriber`), with a library that has the feature
 * `system-reports`:
 *
 *     - (void)didReceiveDiagnosticPayloads:(NSArray<MXDiagnosticPayload *> *)payloads
 *     {
 *         coroner_add_metric_kit_payloads(payloads);
 *     }
 */
#ifndef CORONER_APPLE_H
#define CORONER_APPLE_H

#include "coroner.h"

/* In C it is `coroner.h`. */
#ifdef __OBJC__
#import <Foundation/Foundation.h>

/* Errors of a chain that are reported. */
#define CORONER_MAX_ERRORS 8

// Reports an error that was handled, with the errors below it (`NSUnderlyingErrorKey`, and of `NSMultipleUnderlyingErrorsKey` the first) as its causes: domain,
// code and description of each, and the calling thread's stack. As coroner_report_coded_error otherwise. Nothing is reported of nil.
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
            /* NSMultipleUnderlyingErrorsKey, which macOS 11.3 and iOS 14.5 brought: by its value, so that no system is too old. */
            id all = next.userInfo[@"NSMultipleUnderlyingErrorsKey"];
            below = [all isKindOfClass:[NSArray class]] ? [(NSArray *)all firstObject] : nil;
        }
        next = [below isKindOfClass:[NSError class]] ? (NSError *)below : nil;
    }
    return coroner_report_coded_error(CORONER_EXCEPTION_LANGUAGE_OBJ_C, chain, count);
}

/* Not tvOS and watchOS; on macOS its diagnostics are of version 12 on. */
#if __has_include(<MetricKit/MetricKit.h>)
#import <MetricKit/MetricKit.h>

// Takes what MetricKit says of the app, as coroner_add_metric_kit_payload: what its subscriber gets, or, with MXMetricManager's `pastDiagnosticPayloads` after the install,
// what came before. A payload that can't be taken keeps none of the others back: the status is that of the first such one.
API_AVAILABLE(ios(14.0), macos(12.0))
static inline coroner_status coroner_add_metric_kit_payloads(NSArray<MXDiagnosticPayload *> *_Nullable payloads)
{
    coroner_status status = CORONER_STATUS_OK;
    for (MXDiagnosticPayload *payload in payloads) {
        NSData *json = [payload JSONRepresentation];
        coroner_status taken = coroner_add_metric_kit_payload((const uint8_t *)json.bytes, json.length);
        if (status == CORONER_STATUS_OK)
            status = taken;
    }
    return status;
}
#endif

#endif
#endif
