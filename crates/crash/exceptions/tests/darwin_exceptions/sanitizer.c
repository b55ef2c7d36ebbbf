// A stand-in for a sanitizer's runtime: the function by which programs know that one is there.

__attribute__((visibility("default"))) void __asan_init(void) {}
