// A stub of Foundation for clang's parser: the declarations of <Foundation/NSError.h> and
// <objc/NSObject.h> that `coroner_apple.h` uses.
#ifndef FOUNDATION_H
#define FOUNDATION_H

// Like <os/availability.h>, for the two systems that have MetricKit's diagnostics.
#define API_AVAILABLE_OF(system) __attribute__((availability(system)))
#define API_AVAILABLE(first, second) API_AVAILABLE_OF(CORONER_SYSTEM_##first) API_AVAILABLE_OF(CORONER_SYSTEM_##second)
#define CORONER_SYSTEM_ios(version) ios, introduced = version
#define CORONER_SYSTEM_macos(version) macos, introduced = version

typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef signed char BOOL;
#define nil ((id)0)

__attribute__((objc_root_class)) @interface NSObject
+ (Class _Nonnull)class;
- (BOOL)isKindOfClass:(Class _Nonnull)aClass;
@end

@interface NSString : NSObject
@property (readonly, nullable) const char *UTF8String __attribute__((objc_returns_inner_pointer));
@end

typedef NSString *NSErrorDomain;
typedef NSString *NSErrorUserInfoKey;

@interface NSDictionary<__covariant KeyType, __covariant ObjectType> : NSObject
- (nullable ObjectType)objectForKeyedSubscript:(KeyType _Nonnull)key;
@end

typedef struct {
    unsigned long state;
    id _Nullable __unsafe_unretained *_Nullable itemsPtr;
    unsigned long *_Nullable mutationsPtr;
    unsigned long extra[5];
} NSFastEnumerationState;

@interface NSArray<__covariant ObjectType> : NSObject
@property (nullable, nonatomic, readonly) ObjectType firstObject;
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *_Nonnull)state
                                  objects:(id _Nullable __unsafe_unretained[_Nonnull])buffer
                                    count:(NSUInteger)length;
@end

@interface NSData : NSObject
@property (readonly) NSUInteger length;
@property (readonly, nonnull) const void *bytes;
@end

@interface NSError : NSObject
@property (readonly, copy, nonnull) NSErrorDomain domain;
@property (readonly) NSInteger code;
@property (readonly, copy, nonnull) NSDictionary<NSErrorUserInfoKey, id> *userInfo;
@property (readonly, copy, nonnull) NSString *localizedDescription;
@end

extern NSErrorUserInfoKey _Nonnull const NSUnderlyingErrorKey;

#endif
