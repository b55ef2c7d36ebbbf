// A stand-in for what `coroner_apple.h` needs of Foundation, with the declarations of <Foundation/NSError.h> and <objc/NSObject.h>, for clang's parser alone.
#ifndef FOUNDATION_H
#define FOUNDATION_H

typedef long NSInteger;
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

@interface NSError : NSObject
@property (readonly, copy, nonnull) NSErrorDomain domain;
@property (readonly) NSInteger code;
@property (readonly, copy, nonnull) NSDictionary<NSErrorUserInfoKey, id> *userInfo;
@property (readonly, copy, nonnull) NSString *localizedDescription;
@end

extern NSErrorUserInfoKey _Nonnull const NSUnderlyingErrorKey;

#endif
