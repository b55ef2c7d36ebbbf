// A stub of MetricKit for clang's parser: the declarations of <MetricKit/MXDiagnosticPayload.h>
// that `coroner_apple.h` uses.
#ifndef METRICKIT_H
#define METRICKIT_H

#import <Foundation/Foundation.h>

API_AVAILABLE(ios(14.0), macos(12.0))
@interface MXDiagnosticPayload : NSObject
- (nonnull NSData *)JSONRepresentation;
@end

#endif
