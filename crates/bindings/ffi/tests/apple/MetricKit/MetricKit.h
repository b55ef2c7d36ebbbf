// A stand-in for what `coroner_apple.h` needs of MetricKit, with the declarations of <MetricKit/MXDiagnosticPayload.h>, for clang's parser alone.
#ifndef METRICKIT_H
#define METRICKIT_H

#import <Foundation/Foundation.h>

API_AVAILABLE(ios(14.0), macos(12.0))
@interface MXDiagnosticPayload : NSObject
- (nonnull NSData *)JSONRepresentation;
@end

#endif
