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
 */
#ifndef CORONER_APPLE_H
#define CORONER_APPLE_H

#include "coroner.h"

/* In C it is `coroner.h`. */
#ifdef __OBJC__
#import <Foundation/Foundation.h>

/* Errors of a chain that are reported. */
#define CORONER_MAX_ERRORS 8

// Reports an error that was handled, with the errors below it (`NSUnderlyingErrorKey`) as its causes: domain, code and description of each, and the
// calling thread's stack. As coroner_report_coded_error otherwise. Nothing is reported of nil.
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
        next = [below isKindOfClass:[NSError class]] ? (NSError *)below : nil;
    }
    return coroner_report_coded_error(CORONER_EXCEPTION_LANGUAGE_OBJ_C, chain, count);
}

#endif
#endif
